"""Another user of the machine, and tests that send without end: outcomes stay, nothing is read, memory is bounded."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

as_root = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can be a second user")

STRANGER = """
import json, os, re, socket, sys
os.setgid(65534)
os.setuid(65534)
run = sys.argv[1]
found = {"sockets": 0, "connected": 0, "read": [], "tokens": []}
for path in (line.split()[-1] for line in open("/proc/net/unix")):
    if path in (run + "/socket", "@" + os.path.basename(run)):
        found["sockets"] += 1
        with socket.socket(socket.AF_UNIX) as stranger:
            try:
                stranger.connect("\\0" + path[1:] if path[0] == "@" else path)
                found["connected"] += 1
            except PermissionError:
                pass
for name in ("endpoint", "counters", "1.out"):
    try:
        found["read"].append(open(os.path.join(run, name), "rb").read())
    except PermissionError:
        pass
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/cmdline").read().split("\\0")
    except OSError:
        continue
    if run in words:
        found["tokens"] += [word for word in words if re.fullmatch("[0-9a-f]{16,}", word)]
print(json.dumps(found))
"""

ATTACKED = f"""
import json, os, subprocess, sys, tempfile
import pytest

def attack():
    (run,) = [path for path in os.listdir(tempfile.gettempdir()) if path.startswith("rlstability-")]
    run = os.path.join(tempfile.gettempdir(), run)
    command = [sys.executable, "-c", {STRANGER!r}, run]
    return json.loads(subprocess.run(command, cwd="/", stdout=subprocess.PIPE, check=True).stdout)

@pytest.mark.rl_isolated
def test_attacked():
    found = attack()
    assert found.pop("sockets") > 0
    assert found == {{"connected": 0, "read": [], "tokens": []}}

def test_after():
    pass

def test_fails():
    assert 0
"""


@as_root
@pytest.mark.parametrize("backend", ["zygote", "spawn"])
def test_a_second_user_connects_to_nothing_and_reads_nothing(run_pytest, backend):
    Path(os.environ["TMPDIR"]).chmod(0o755)  # only what the run makes in it may keep them out
    outcome = run_pytest(ATTACKED, f"--rl-backend={backend}")
    assert outcome.tests == {"test_attacked": "passed", "test_after": "passed", "test_fails": "failed"}, outcome.text


FLOOD = """
import os, sys, warnings

def test_stages(rl_stage):
    for number in range(5_000):
        with rl_stage(f"stage {number}"):
            pass
    os.abort()

def test_long_exception():
    raise ValueError("begin" + "x" * 10_000_000 + "end")

def test_properties(record_property):
    for number in range(100_000):
        record_property(f"key {number}", "value")

def test_warnings():
    for number in range(3_000):
        warnings.warn(f"warning {number}")

def test_output():
    for _ in range(64):
        os.write(1, b"z" * (1 << 20))
    assert 0
"""


def test_what_a_test_sends_is_cut_and_the_outcomes_are_right(run_pytest):
    outcome = run_pytest(FLOOD)
    failed = {name for name, word in outcome.tests.items() if word == "failed"}
    assert failed == {"test_stages", "test_long_exception", "test_output"}
    assert len(outcome.tests) == 5
    assert "[... 4,800 stages left out by rl-stability ...]" in outcome.text
    assert "stage 4999" in outcome.text
    assert "Parts of this report were left out: it had " in outcome.text
    assert "2,000 more warnings of this test were left out by rl-stability" in outcome.text
    for name in ("events.jsonl", "junit.xml"):
        assert (run_pytest.path / name).stat().st_size < 16 << 20


SPRAY = """
import os

def test_sprays():
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"[1]\\n")
        except OSError:
            pass

def test_innocent():
    pass
"""


def test_a_test_that_writes_to_our_descriptors_ends_no_session(run_pytest):
    outcome = run_pytest(SPRAY)
    assert outcome.tests["test_sprays"] in ("error", "failed")
    assert outcome.tests["test_innocent"] == "passed"


SECRETS = """
import subprocess, sys
import pytest

def test_leaves_a_process():
    program = "import threading; threading.Event().wait()"
    subprocess.Popen([sys.executable, "-c", program, "--password=HUNTER", "--token", "HUNTER", "http://me:HUNTER@host"])

@pytest.mark.rl_isolated(env={"MY_SECRET": "HUNTER"})
def test_crashes():
    import os
    os.abort()
"""


def test_reports_hold_no_credentials_and_are_their_owner_s(run_pytest, monkeypatch):
    monkeypatch.setenv("API_SECRET", "HUNTER")
    run_pytest.write("conftest.py", "def pytest_addoption(parser):\n    parser.addoption('--api-token')\n")
    outcome = run_pytest(SECRETS, "--api-token=HUNTER", "--rl-html=run.html", "-rA")
    assert "--password=***" in outcome.text
    assert "HUNTER" not in outcome.text
    for name in ("events.jsonl", "run.html"):
        path = run_pytest.path / name
        assert "HUNTER" not in path.read_text()
        assert os.name == "nt" or stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_report_that_was_there_keeps_its_mode(run_pytest):
    for name in ("run.jsonl", "run.html"):
        run_pytest.write(name, "").chmod(0o644)
    run_pytest("def test_it(): pass\n", "--rl-jsonl=run.jsonl", "--rl-html=run.html")
    for name in ("run.jsonl", "run.html"):
        assert stat.S_IMODE((run_pytest.path / name).stat().st_mode) == 0o644


def test_output_that_does_not_fit_into_memory(run_pytest):
    outcome = run_pytest(
        """
        import os, resource
        def test_it():
            os.lseek(1, 3 << 30, os.SEEK_CUR)
            os.write(1, b"the end")
        def test_memory(): assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1 << 20
        """,
        "--rl-group=auto",
        "-rA",
    )
    assert outcome.tests == {"test_it": "passed", "test_memory": "passed"}, outcome.text[-2000:]
    assert "3,220,701,391 bytes left out by rl-stability" in outcome.text
    assert "the end" in outcome.text

"""Workers on other hosts: what becomes of a run when one of them is gone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.session.xdist_channel import limit_ssh

pytest.importorskip("xdist")

KILL_WORKER = """
    import os, signal, time
    import pytest

    def kill_worker():
        os.kill(int(os.environ["WORKER"]), signal.SIGKILL)
        signal.pause()
"""
CONFTEST = """
    import os
    from pathlib import Path

    def pytest_configure(config):
        if hasattr(config, "workerinput"):
            os.environ.setdefault("WORKER", str(os.getpid()))

    class Seen:
        trouble = ""
        def handle(self, event):
            if event.kind == "started": Path(event.test.split("::")[1]).touch()
        def close(self): pass
        def lines(self): return ()

    def pytest_rlstability_reports(config):
        return [Seen()]
"""
"""Each test's start is seen in the controller's directory."""
LOST = """
    def test_lost():
        while not os.path.exists("test_lost"): time.sleep(0.01)
        kill_worker()
    def test_fine(): pass
"""
FAR_HOST = """#!/bin/sh
echo "$@" >>{directory}/calls
test -e {directory}/gone && exit 255
touch {directory}/gone
for command; do :; done
FAR=1 exec sh -c "$command"
"""


@pytest.fixture(autouse=True)
def wait_for_parents(run_pytest: Any) -> Iterator[None]:
    """The parent of a killed worker's tests removes their files, perhaps a moment after the run."""
    yield
    deadline = time.monotonic() + 30
    while any(Path(os.environ["TMPDIR"]).glob("rlstability-*")) and time.monotonic() < deadline:
        time.sleep(0.05)


def finished(outcome: Any) -> list[dict[str, Any]]:
    return [event for event in outcome.events if event["event"] == "finished"]


@pytest.mark.parametrize(
    "spec, limited",
    [
        ("popen", False),
        ("popen//via=far", False),
        ("socket=far:8888", False),
        ("ssh=far", True),
        ("4*ssh=me@far//python=python3", True),
        ("id=far//ssh=far//chdir=/tmp", True),
    ],
)
def test_ssh_does_not_wait_without_a_limit(spec, limited):
    parts = limit_ssh(spec).split("//")
    assert [part.split(" -o ")[0] for part in parts] == spec.split("//")
    assert [part for part in parts if "-o ConnectTimeout=" in part and "-o ServerAliveInterval=" in part] == [
        part for part in parts if "ssh=" in part
    ]
    assert any("ssh=" in part for part in parts) == limited


def test_limits_that_the_user_gave_ssh_come_first():
    spec = limit_ssh("ssh=-o ServerAliveInterval=5 far")
    assert spec.index("ServerAliveInterval=5") < spec.index("ServerAliveInterval=15")


@pytest.mark.skipif(os.name != "posix", reason="kills a process with a signal")
def test_the_log_has_the_end_of_a_test_that_was_lost_with_its_worker(run_pytest):
    run_pytest.pytester.makeconftest(CONFTEST)
    outcome = run_pytest(KILL_WORKER + LOST, "-n1")
    lost, fine = finished(outcome)
    assert (lost["test"], lost["outcome"], lost["worker"]) == ("test_it.py::test_lost", "failed", "gw0")
    assert (fine["test"], fine["outcome"], fine["worker"]) == ("test_it.py::test_fine", "passed", "gw1")
    assert f"The worker died, or the connection to its host broke. It ran on {lost['host']}." in lost["report"]
    assert lost["report"].splitlines()[1] in outcome.text


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_a_run_goes_on_without_a_host_that_vanished(run_pytest, monkeypatch):
    tools = run_pytest.pytester.mkdir("tools")
    (tools / "ssh").write_text(FAR_HOST.format(directory=tools))
    (tools / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    run_pytest.write("suite/pytest.ini", "[pytest]")
    run_pytest.write("suite/conftest.py", CONFTEST)
    tests = """
    @pytest.mark.parametrize("number", range(8))
    def test_one(number):
        if "FAR" in os.environ: kill_worker()
    """
    run_pytest.write("suite/test_it.py", KILL_WORKER + tests)
    outcome = run_pytest.run(
        "--tx=popen",
        f"--tx=ssh=far//python={sys.executable}//chdir={run_pytest.path}/far",
        "--dist=load",
        f"--rsyncdir={run_pytest.path}/suite",
        f"{run_pytest.path}/suite",
        "-pno:rerunfailures",
    )
    assert sorted(event["outcome"] for event in finished(outcome)) == ["failed", *7 * ["passed"]]
    assert "rl-stability: far cannot be reached: " in outcome.text
    assert "replaces gw1 on this machine" in outcome.text
    assert {event["worker"] for event in finished(outcome) if event["outcome"] == "failed"} == {"gw1"}
    calls = (tools / "calls").read_text().splitlines()
    assert len(calls) == 2
    assert all("ServerAliveInterval" in call for call in calls)


def test_a_test_that_is_blamed_after_its_end_gets_a_report_in_a_worker_too(run_pytest):
    outcome = run_pytest(
        """
        import os, signal
        def test_culprit(): signal.signal(signal.SIGUSR2, lambda *_: os.abort())
        def test_between(): pass
        def test_victim():
            if signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
                signal.raise_signal(signal.SIGUSR2)
        """,
        "--rl-group=auto",
        "-n1",
    )
    assert "internal error" not in outcome.text
    assert outcome.text.count("CRASH: makes ") >= 1
    assert outcome.tests["test_victim"] == "failed"

"""What differs between operating systems, and must not show: Ctrl-C, other encodings, strays, workers of xdist."""

from __future__ import annotations

import sys

import pytest

from pytest_rlstability.osinfo import portable
from tests.conftest import RunPytest

NOT_LINUX = pytest.mark.skipif(sys.platform == "linux", reason="tests cannot be forked on other systems only")

INTERRUPTS = """
import signal, threading

def pytest_collection_finish(session):
    if "rlstability-report-sender" not in str(session.config.pluginmanager.list_name_plugin()):
        threading.Timer(4, signal.raise_signal, [signal.SIGINT]).start()
"""


@NOT_LINUX
def test_a_fork_is_refused(run_pytest: RunPytest) -> None:
    outcome = run_pytest("def test_it(): pass", "--rl-backend=zygote")
    assert outcome.code == pytest.ExitCode.USAGE_ERROR
    assert f"--rl-backend=zygote: tests cannot be forked on {sys.platform}" in outcome.text


@pytest.mark.slow
def test_ctrl_c_ends_the_run(run_pytest: RunPytest) -> None:
    run_pytest.write("conftest.py", INTERRUPTS)
    outcome = run_pytest("import time\ndef test_it():\n    while True: time.sleep(0.1)", "--rl-backend=spawn")
    assert outcome.code == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in outcome.text


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_a_terminal_that_has_not_all_characters(
    run_pytest: RunPytest, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    source = """
    import pytest
    KEPT = []

    @pytest.mark.rl_no_leak
    def test_it(rl_laps):
        for _ in rl_laps:
            KEPT.append(bytearray(4096))
    """
    outcome = run_pytest(source, "--rl-backend=spawn")
    assert outcome.messages["test_it"].startswith("LEAK:")
    assert "held by test_it.KEPT" in outcome.text
    assert "\\n" not in outcome.text, "the report is one escaped line"
    assert len([line for line in outcome.text.splitlines() if line.startswith("Signal")]) <= 1


@pytest.mark.slow
def test_a_process_that_was_left_running_is_named_and_ended(run_pytest: RunPytest) -> None:
    source = """
    import os, pytest, subprocess, sys

    def test_it():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # stray"])
        open("pid", "w").write(str(child.pid))
        os._exit(3)
    """
    outcome = run_pytest(source, "--rl-backend=spawn")
    assert "CRASH: ended itself with exit code 3" in outcome.text
    assert "# stray" in outcome.text, "it is named"
    assert not portable.is_alive(int((run_pytest.path / "pid").read_text()))


@pytest.mark.slow
def test_workers_of_xdist(run_pytest: RunPytest) -> None:
    pytest.importorskip("xdist")
    source = "import os\ndef test_dies(): os.abort()\ndef test_passes(): pass\ndef test_fails(): assert 0\n"
    outcome = run_pytest(source, "--rl-backend=spawn", "-n2")
    assert outcome.messages["test_dies"].startswith("CRASH: SIGABRT")
    assert {name: outcome.tests[name] for name in ("test_passes", "test_fails")} == {
        "test_passes": "passed",
        "test_fails": "failed",
    }

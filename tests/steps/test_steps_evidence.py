"""Steps that are watched closely: held crashes, workers' stacks, breadcrumbs, bounds on output and on descendants."""

from __future__ import annotations

import sys
import time

import psutil
import pytest

from pytest_rlstability.osinfo.native_stacks import find_tool
from pytest_rlstability.steps import StageRecord, Step, read_stages, run_step, runner

linux = pytest.mark.skipif(sys.platform != "linux", reason="what the kernel tells on Linux")


@linux
@pytest.mark.parametrize(
    "before",
    ["", "import faulthandler; faulthandler.disable()", "import faulthandler; faulthandler.enable()"],
    ids=["plain", "faulthandler off", "faulthandler taken over"],
)
def test_crash_is_held_for_its_native_stack(before: str) -> None:
    code = f"import ctypes\n{before}\ndef deep():\n    ctypes.string_at(0)\ndeep()"
    outcome = run_step(Step("crash", code=code, evidence=True))
    assert (outcome.ending, outcome.signal) == ("crash", "SIGSEGV")
    assert outcome.native
    if find_tool("pystack"):
        assert "string_at" in outcome.native or "strlen" in outcome.native, "the latter of a Python without symbols"
    if not before:
        assert "in deep" in outcome.stack


@linux
def test_crash_in_a_thread_is_held() -> None:
    code = "import os, threading\nt = threading.Thread(target=os.abort)\nt.start()\nt.join()"
    outcome = run_step(Step("thread", code=code, evidence=True))
    assert (outcome.ending, outcome.signal) == ("crash", "SIGABRT")


@linux
@pytest.mark.parametrize(
    "code",
    [
        "import atexit, os; atexit.register(os.abort)",
        "import os, sys\nclass Late:\n    def __del__(self, die=os.abort):\n        die()\nsys.late = Late()",
    ],
    ids=["in an exit callback", "in a destructor, when faulthandler has left"],
)
def test_crash_while_the_interpreter_ends(code: str) -> None:
    outcome = run_step(Step("late", code=code, evidence=True))
    assert (outcome.ending, outcome.signal) == ("crash", "SIGABRT")
    assert outcome.native


@linux
def test_forked_worker_dies_by_itself_and_leaves_its_stack() -> None:
    code = (
        "import os\ndef in_worker():\n    os.abort()\n"
        "pid = os.fork()\nif pid == 0:\n    in_worker()\n"
        "result = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    outcome = run_step(Step("worker", code=code, evidence=True))
    assert (outcome.ending, outcome.result) == ("ok", -6)
    assert "in in_worker" in outcome.workers


@pytest.mark.slow
@linux
def test_stacks_of_workers_of_a_step_that_hangs() -> None:
    code = (
        "import os, time\ndef idle():\n    time.sleep(600)\n"
        "pid = os.fork()\nif pid == 0:\n    idle()\nos.waitpid(pid, 0)"
    )
    outcome = run_step(Step("stuck", code=code, evidence=True, timeout=5.0))
    assert outcome.ending == "hang"
    assert "idle" in outcome.workers


@linux
def test_innocent_step_with_evidence_is_ok() -> None:
    code = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
    code += "time.sleep(0.5)\nresult = 3"
    outcome = run_step(Step("fine", code=code, evidence=True))
    assert (outcome.ending, outcome.result, outcome.native, outcome.workers) == ("ok", 3, "", "")


@linux
def test_descendant_that_left_its_session_and_parents_is_killed(tmp_path) -> None:
    pid_file = tmp_path / "pid"
    code = """
import os, time
path = arguments["path"]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(path + ".part", "w").write(str(os.getpid()))
        os.rename(path + ".part", path)
        time.sleep(600)
    os._exit(0)
while not os.path.exists(path):
    time.sleep(0.01)
"""
    outcome = run_step(Step("daemon", code=code, arguments={"path": str(pid_file)}))
    assert outcome.ending == "ok"
    assert _is_gone(int(pid_file.read_text()))


def _is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_output_is_bounded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(runner, "_MOST_OUTPUT", 10_000)
    stdout, stderr = tmp_path / "stdout.txt", tmp_path / "stderr.txt"
    for path, size in ((stdout, 10_001), (stderr, 10_000)):
        path.write_bytes(b"x" * (size - 4) + b"last")
    runner._bound_output(tmp_path)
    assert (stdout.stat().st_size, stderr.stat().st_size) == (8192, 10_000)
    assert stdout.read_bytes().endswith(b"xlast")
    assert stderr.read_bytes().endswith(b"xlast")


def test_hundred_megabytes_of_output() -> None:
    code = "import sys\nfor _ in range(100):\n    sys.stdout.write('x' * 2**20)"
    outcome = run_step(Step("loud", code=code))
    assert outcome.ending == "ok"
    assert 0 < len(outcome.stdout) <= 8192


def test_garbage_and_closed_output() -> None:
    outcome = run_step(
        Step("garbage", code="import os\nos.write(1, bytes(range(256)))\nos.close(1); os.close(2)\nresult = 1")
    )
    assert (outcome.ending, outcome.result) == ("ok", 1)
    assert outcome.stdout


def test_killed_step() -> None:
    outcome = run_step(Step("killed", code="import os; os.kill(os.getpid(), 9)", evidence=True))
    assert (outcome.ending, outcome.signal) == ("crash", "SIGKILL")


def test_stages_of_a_function_survive_its_death(tmp_path) -> None:
    (tmp_path / "work.py").write_text(
        "import os\ndef work(rl_stage):\n"
        "    with rl_stage('one'):\n        pass\n"
        "    with rl_stage('two'):\n        with rl_stage('inner'):\n            os._exit(3)\n"
    )
    outcome = run_step(Step("work", call=f"{tmp_path / 'work.py'}:work"))
    assert [(stage.name, stage.state) for stage in outcome.stages] == [
        ("one", "done"), ("two", "open"), ("two > inner", "open"),
    ]  # fmt: skip


def test_stages_tell_an_exception_from_an_end() -> None:
    lines = [
        '["a", "open"]', '["a > b", "open"]', '["a > b", "raised"]', '["a", "done"]', '["c", "open"]', '["cut sh',
    ]  # fmt: skip
    assert read_stages(lines) == (StageRecord("a", "done"), StageRecord("a > b", "raised"), StageRecord("c", "open"))

"""Steps: a piece of code in a fresh interpreter, and how it ended."""

from __future__ import annotations

import os
import time

import psutil
import pytest

from pytest_rlstability.steps import Step, run_step, run_steps


def test_result_of_text_comes_back() -> None:
    outcome = run_step(Step("sum", code="result = sum(arguments['numbers'])", arguments={"numbers": [1, 2, 4]}))
    assert (outcome.ending, outcome.result, outcome.headline()) == ("ok", 7, "ok")


def test_result_of_function_comes_back() -> None:
    outcome = run_step(Step("join", call="posixpath:join", arguments={"a": "left"}))
    assert (outcome.ending, outcome.result) == ("ok", "left")


def test_function_in_a_file(tmp_path) -> None:
    (tmp_path / "check.py").write_text("def double(value):\n    return 2 * value\n")
    outcome = run_step(Step("double", call=f"{tmp_path / 'check.py'}:double", arguments={"value": 21}))
    assert outcome.result == 42


def test_an_exception_is_not_a_crash() -> None:
    outcome = run_step(Step("bad", code="print('before'); {}['missing']"))
    assert (outcome.ending, outcome.error) == ("raised", "KeyError: 'missing'")
    assert outcome.stdout == "before\n"
    assert '"<step>", line 1' in outcome.stack


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_crash_names_signal_and_stack() -> None:
    code = "import faulthandler\ndef deep():\n    faulthandler._sigsegv()\ndeep()"
    outcome = run_step(Step("segfault", code=code))
    assert (outcome.ending, outcome.signal, outcome.headline()) == ("crash", "SIGSEGV", "SIGSEGV")
    assert "in deep" in outcome.stack


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_crash_at_interpreter_exit_is_a_crash() -> None:
    outcome = run_step(Step("late", code="import atexit, os; atexit.register(os.abort); result = 1"))
    assert (outcome.ending, outcome.signal) == ("crash", "SIGABRT")


@pytest.mark.parametrize("code", [0, 3])
def test_leaving_without_a_result_is_a_crash(code: int) -> None:
    outcome = run_step(Step("exit", code=f"import os; os._exit({code})"))
    assert (outcome.ending, outcome.exit_code) == ("crash", code)
    assert outcome.headline() == f"exit code {code} before the end"


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="process groups")
def test_hang_is_killed_with_its_stack_and_descendants(tmp_path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
        "def stuck():\n    time.sleep(600)\nstuck()"
    )
    outcome = run_step(Step("stuck", code=code, timeout=4.0))
    assert outcome.ending == "hang"
    assert "in stuck" in outcome.stack
    assert outcome.headline().startswith("still running after ")
    assert not _alive(int(pid_file.read_text()))


def _alive(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            return False
        time.sleep(0.02)
    return True


def test_environment_directory_and_search_path(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("STEP_GONE", "1")
    (tmp_path / "lent.py").write_text("value = 5\n")
    code = "import os, lent; result = [os.getcwd(), os.environ.get('STEP_GONE'), os.environ['STEP_SET'], lent.value]"
    outcome = run_step(
        Step(
            "changed",
            code=code,
            directory=str(tmp_path),
            environment={"STEP_GONE": None, "STEP_SET": "yes"},
            search_path=(str(tmp_path),),
        )
    )
    assert outcome.result == [os.path.realpath(tmp_path), None, "yes", 5]


def test_modules_beside_the_worker_are_not_importable_by_their_bare_names() -> None:
    assert run_step(Step("bare", code="import units")).error == "ModuleNotFoundError: No module named 'units'"


def test_missing_interpreter_is_said() -> None:
    outcome = run_step(Step("none", code="pass", python="/nowhere/python"))
    assert outcome.ending == "raised"
    assert outcome.error.startswith("cannot start /nowhere/python: ")


def test_outcomes_keep_the_order_of_their_steps() -> None:
    ended: list[str] = []
    steps = [Step(str(number), code=f"result = {number}") for number in range(4)]
    outcomes = run_steps(steps, on_end=lambda outcome: ended.append(outcome.name))
    assert [outcome.result for outcome in outcomes] == [0, 1, 2, 3]
    assert sorted(ended) == ["0", "1", "2", "3"]


def test_result_that_json_cannot_hold_is_raised() -> None:
    assert run_step(Step("object", code="result = object()")).error.startswith("TypeError: ")

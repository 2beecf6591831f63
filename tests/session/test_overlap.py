"""The next test may run while pytest is told of the last one, if nobody can notice."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

STOPS_AFTER_A_WARNING = """
    import pathlib, time
    import pytest

    def pytest_sessionstart(session):
        global the_session
        the_session = session

    def pytest_warning_recorded():
        patience = time.monotonic() + 60
        while not pathlib.Path("pid").exists() and time.monotonic() < patience:
            time.sleep(0.01)  # for the next test to begin
        the_session.shouldstop = "enough"
"""
SLEEPS = """
    import os, pathlib, time, warnings

    def test_warns():
        time.sleep(2)  # for a process to be ready for the next one
        warnings.warn("something")

    def test_is_running_when_the_session_stops():
        pathlib.Path("unfinished").write_text(str(os.getpid()))
        pathlib.Path("unfinished").rename("pid")
        time.sleep(60)
"""


@pytest.mark.parametrize("arguments", [(), ("--rl-group=module",)])
def test_a_test_begun_early_and_not_wanted_is_ended_and_not_reported(run_pytest, arguments):
    run_pytest.write("conftest.py", STOPS_AFTER_A_WARNING)
    outcome = run_pytest(SLEEPS, *arguments)
    assert outcome.tests == {"test_warns": "passed"}
    assert "stopping after" not in outcome.text
    assert "enough" in outcome.text
    pid = int((run_pytest.path / "pid").read_text())  # it had begun
    assert not Path(f"/proc/{pid}").exists()


ONE_AFTER_THE_OTHER = """
    import os, pathlib, sys, time

    def pytest_runtest_{hook}(nodeid):
        if "-n1" in sys.argv and "PYTEST_XDIST_WORKER" not in os.environ:
            return  # xdist's controller hears of it too
        time.sleep(0.3)  # long enough for a test begun too early to be found out
        with pathlib.Path("heard").open("a") as file:
            file.write("x")
"""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--rl-group=module",), ("-n1",)])
@pytest.mark.parametrize("hook, before", [("logfinish", 0), ("logstart", 1)])
def test_what_a_conftest_does_between_two_tests_is_done_when_the_next_begins(run_pytest, hook, before, arguments):
    run_pytest.write("conftest.py", ONE_AFTER_THE_OTHER.format(hook=hook))
    outcome = run_pytest(
        f"""
        import pathlib
        import pytest
        @pytest.mark.parametrize("number", range(3))
        def test_it(number):
            heard = pathlib.Path("heard")
            assert len(heard.read_text() if heard.exists() else "") >= number + {before}
        """,
        *arguments,
    )
    assert set(outcome.tests.values()) == {"passed"}, outcome.text


@pytest.mark.parametrize("arguments", [("-s",), ("-s", "--rl-group=module"), ("--capture=tee-sys", "--rl-group=auto")])
def test_output_that_goes_straight_to_the_terminal_stays_in_order(run_pytest, arguments):
    source = "".join(f"def test_{name}(): print('said by {name}')\n" for name in "abcdef")
    outcome = run_pytest(source, "-v", *arguments)
    words = [word for line in outcome.text.splitlines() for word in ("said by", "PASSED") if word in line]
    assert words == ["said by", "PASSED"] * 6


def test_the_live_log_of_each_test_has_lines_of_its_own(run_pytest):
    source = "import logging\n" + "".join(f"def test_{name}(): logging.warning('said by {name}')\n" for name in "ab")
    outcome = run_pytest(source, "-v", "--log-cli-level=INFO", "--rl-group=auto")
    assert outcome.text.count("\n---") >= outcome.text.count("--- live log call ---") == 2
    assert "test_b -" not in outcome.text


def test_a_terminal_that_does_not_take_our_words_is_no_standstill_of_the_tests(run_pytest):
    run_pytest.write(
        "test_it.py",
        """
        import pytest

        @pytest.mark.parametrize("number", range(400), ids=lambda number: f"{number:0200}")
        def test_quick(number): pass
        """,
    )
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--rl-stability", "--rl-group=module"]
    with subprocess.Popen(
        [*command, "--timeout=1"], cwd=run_pytest.path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        time.sleep(8)  # the pipe is full long before the last test, and stays so for longer than any limit
        text = process.stdout.read()
    assert "400 passed" in text, text[-3000:]

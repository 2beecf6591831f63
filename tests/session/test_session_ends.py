"""What ends a session early ends it as it does without us, and everything is torn down."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

MODES = [(), ("--rl-group=module",)]
WIDE = """
    import pathlib, time
    import pytest

    @pytest.fixture(scope="module")
    def wide():
        yield
        with pathlib.Path("log").open("a") as file:
            file.write("wide ")

    @pytest.fixture
    def narrow():
        yield
        with pathlib.Path("log").open("a") as file:
            file.write("narrow ")
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_test_may_stop_the_session(run_pytest, mode):
    source = """
    def test_a(wide): pass
    def test_b(wide, request): request.session.shouldstop = "enough"
    def test_c(wide): pass
    """
    outcome = run_pytest(WIDE + source, *mode)
    assert outcome.tests == {"test_a": "passed", "test_b": "passed"}
    assert "enough" in outcome.text
    assert (run_pytest.path / "log").read_text().split()[-1] == "wide"


@pytest.mark.parametrize("mode", MODES)
def test_fixtures_are_torn_down_after_pytest_exit(run_pytest, mode):
    source = """
    def test_a(wide): pass
    def test_b(wide, narrow): pytest.exit("enough", 7)
    def test_c(wide): pass
    """
    outcome = run_pytest(WIDE + source, *mode)
    assert outcome.code == 7
    assert (run_pytest.path / "log").read_text().split()[-2:] == ["narrow", "wide"]


@pytest.mark.parametrize("mode", MODES)
def test_fixtures_are_torn_down_after_an_interrupt(run_pytest, mode):
    source = """
    def test_a(wide): pass
    def test_b(wide, narrow):
        pathlib.Path("running").touch()
        time.sleep(60)
    """
    path = run_pytest.write("test_it.py", WIDE + source)
    command = [sys.executable, "-m", "pytest", "--rl-stability", *mode, str(path)]
    process = subprocess.Popen(command, cwd=run_pytest.path, stdout=subprocess.PIPE, text=True)
    while not (run_pytest.path / "running").exists():
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 2, text
    assert (run_pytest.path / "log").read_text().split()[-2:] == ["narrow", "wide"]
    assert "CRASH" not in text


def test_a_zygote_killed_after_a_warning_is_replaced(run_pytest):
    outcome = run_pytest(
        """
        import os, warnings
        def test_warns(): warnings.warn("hello")
        def test_kills(): os.kill(os.getppid(), 9)
        def test_b(): pass
        """
    )
    assert outcome.tests == {"test_warns": "passed", "test_kills": "failed", "test_b": "passed"}, outcome.text


def test_what_a_test_does_to_os_is_not_done_to_us(run_pytest):
    outcome = run_pytest(
        """
        import os
        def test_a(): os._exit = None
        def test_b(): os.getpid = lambda: 1
        def test_c(): pass
        """,
        "--rl-group=module",
    )
    assert set(outcome.tests.values()) == {"passed"}, outcome.text


def test_tests_that_are_there_twice(run_pytest):
    run_pytest.write("conftest.py", "def pytest_collection_modifyitems(items): items[:] = items * 2\n")
    outcome = run_pytest(WIDE + "\n    def test_a(wide): pass\n    def test_b(wide): pass\n", "--rl-group=module")
    assert outcome.code == 0, outcome.text
    assert "4 passed" in outcome.text
    assert "CRASH" not in outcome.text


def test_failed_subtests_fail_their_test(run_pytest):
    pytest.importorskip("_pytest.subtests")
    source = """
    def test_it(subtests):
        with subtests.test("first", number=1, text="t"):
            assert False
        with subtests.test("second"):
            pass
    """
    plain = run_pytest(source, on=False).text.splitlines()
    ours = run_pytest(source).text.splitlines()
    for start in ("FAILED", "SUBFAILED", "SUBFAIL"):
        assert [line for line in ours if line.startswith(start)] == [line for line in plain if line.startswith(start)]
    counts = [re.search(r"=+ (\d+ failed.*) in ", "\n".join(lines))[1] for lines in (plain, ours)]
    assert counts[0] == counts[1]

"""``--rl-group=auto``, the default: unmarked tests share a process, and the one that makes it die is named."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

AUTO = "--rl-group=auto"

STATE = """
    import os
    import pytest

    SEEN = []

    @pytest.fixture(scope="session")
    def wide():
        SEEN.append("set up")
        yield os.getpid()

    def test_a(wide): SEEN.append("a")
    def test_b(wide): assert SEEN == ["set up", "a"] and wide == os.getpid()
    @pytest.mark.rl_isolated
    def test_marked(): assert SEEN == []
    def test_c(wide): assert SEEN == ["set up", "a"] and wide == os.getpid()
"""


@pytest.mark.parametrize("backend", ["zygote", pytest.param("spawn", marks=pytest.mark.slow)])
def test_unmarked_tests_share_a_process_and_marked_ones_do_not(run_pytest, backend):
    run_pytest.write("test_other.py", "import os\nPID = os.getpid()\ndef test_other(): pass\n")
    outcome = run_pytest(STATE, AUTO, f"--rl-backend={backend}")
    assert set(outcome.tests.values()) == {"passed"}, outcome.text
    assert f"5 tests in 2 processes ({backend})" in outcome.text
    assert "unmarked tests share a process until it dies, marked ones have their own" in outcome.text


def test_it_is_the_default(pytester):
    pytester.makepyfile("def test_a(): pass\ndef test_b(): pass\n")
    assert "2 tests in 1 process (zygote)" in pytester.runpytest_subprocess("--rl-stability").stdout.str()


def reproduces(run_pytest, text: str, word: str) -> bool:
    """Whether the command that a report ends with makes the same word appear again."""
    command = shlex.split(re.findall(r"^Reproduce: (.*)$", text, re.MULTILINE)[-1])
    again = subprocess.run(command, cwd=run_pytest.path, capture_output=True, text=True, check=False)
    return again.returncode == 1 and word in again.stdout


def test_a_test_that_dies_alone_is_named_once(run_pytest):
    outcome = run_pytest(
        """
        import os
        def test_a(): pass
        def test_dies(): os.abort()
        def test_b(): pass
        """,
        AUTO,
    )
    assert outcome.tests == {"test_a": "passed", "test_dies": "failed", "test_b": "passed"}
    assert "It fails the same way alone." in outcome.details["test_dies"]
    assert "1 crash" in outcome.text
    assert outcome.text.count("The tests after it run in a new process, where wide fixtures are set up again.") == 1
    assert reproduces(run_pytest, outcome.details["test_dies"], "CRASH: SIGABRT in call")


DAMAGE = {
    "a thread left running": (
        "import os, signal, threading, time",
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGSEGV)).start()",
        "time.sleep(1)",
    ),
    "an alarm left armed": ("import signal, time", "signal.setitimer(signal.ITIMER_REAL, 0.3)", "time.sleep(1)"),
    "a signal handler left": (
        "import os, signal, time",
        "signal.signal(signal.SIGUSR1, lambda *_: os.abort())",
        "if signal.getsignal(signal.SIGUSR1) not in (0, signal.SIG_DFL): os.kill(os.getpid(), signal.SIGUSR1)",
    ),
    "a pointer left in a table": (
        "import ctypes\nTABLE = {}",
        "TABLE['row'] = 8",
        "ctypes.string_at(TABLE['row']) if TABLE else None",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_the_test_that_does_the_damage_is_named_and_the_victim_says_so(run_pytest, kind):
    imports, damage, death = DAMAGE[kind]
    imports = imports.replace("\n", "\n        ")
    outcome = run_pytest(
        f"""
        {imports}
        def test_a(): pass
        def test_damage(): {damage}
        def test_b(): pass
        def test_victim():
            {death}
        def test_c(): pass
        """,
        AUTO,
        "--rl-native=off",
    )
    assert outcome.tests["test_damage"] == "error", outcome.text
    assert {outcome.tests[name] for name in ("test_a", "test_b", "test_c")} == {"passed"}
    assert outcome.tests["test_victim"] == "failed"
    assert "test_it.py::test_damage does the damage" in outcome.details["test_victim"]
    assert reproduces(run_pytest, outcome.details["test_victim"], "CRASH")
    assert reproduces(run_pytest, outcome.details["test_damage"], "CRASH")


def test_an_exit_callback_is_blamed_on_the_test_that_registered_it(run_pytest):
    outcome = run_pytest(
        "import atexit, os\ndef test_a(): pass\ndef test_b(): atexit.register(os.abort)\ndef test_c(): pass\n", AUTO
    )
    assert outcome.tests == {"test_a": "passed", "test_b": "error", "test_c": "passed"}
    assert "CRASH: SIGABRT at exit" in outcome.messages["test_b"]


def test_a_stall_in_the_shared_process_harms_nobody_else(run_pytest):
    outcome = run_pytest(
        """
        import signal
        def test_a(): pass
        def test_stalls(): signal.pause()
        def test_b(): pass
        """,
        AUTO,
        "--rl-stall-after=2s",
    )
    assert outcome.tests == {"test_a": "passed", "test_stalls": "failed", "test_b": "passed"}
    assert outcome.messages["test_stalls"].startswith("STALL")


def test_what_never_ends_at_the_shared_processs_exit_is_seen(run_pytest):
    outcome = run_pytest(
        """
        import threading
        def test_a(): pass
        def test_leaves_a_thread(): threading.Thread(target=threading.Event().wait).start()
        def test_b(): pass
        """,
        AUTO,
        "--rl-stall-after=3s",
    )
    assert outcome.tests == {"test_a": "passed", "test_leaves_a_thread": "error", "test_b": "passed"}, outcome.text
    assert "STALL" in outcome.messages["test_leaves_a_thread"]


def test_a_suite_whose_every_test_dies_ends(run_pytest):
    outcome = run_pytest(
        "import os, pytest\n@pytest.mark.parametrize('n', range(5))\ndef test_dies(n): os.abort()\n",
        AUTO,
        "--rl-native=off",
    )
    assert list(outcome.tests.values()) == ["failed"] * 5
    assert outcome.code == 1


def test_the_search_can_be_turned_off(run_pytest):
    outcome = run_pytest("import os\ndef test_dies(): os.abort()\n", AUTO, "-o", "rl_blame_budget=0")
    assert "The culprit was not searched for" in outcome.details["test_dies"]


@pytest.mark.parametrize("option", ["-x", "--maxfail=1"])
def test_stopping_at_the_first_failure(run_pytest, option):
    outcome = run_pytest("import os\ndef test_dies(): os.abort()\ndef test_b(): pass\n", AUTO, option)
    assert outcome.tests == {"test_dies": "failed"}


@pytest.mark.parametrize("distribution", ["load", pytest.param("worksteal", marks=pytest.mark.slow)])
def test_each_xdist_worker_has_a_shared_process(run_pytest, distribution):
    pytest.importorskip("xdist")
    outcome = run_pytest(
        """
        import os, pytest
        @pytest.mark.parametrize("n", range(12))
        def test_fine(n): pass
        def test_dies(): os.abort()
        """,
        AUTO,
        "-n2",
        f"--dist={distribution}",
    )
    assert outcome.tests.pop("test_dies") == "failed"
    assert set(outcome.tests.values()) == {"passed"}
    assert re.search(r"13 tests in [23] processes", outcome.text), "one each, and another if any test was left"


def test_what_a_test_leaves_in_the_shared_process_is_shown_with_its_name(run_pytest):
    outcome = run_pytest(
        """
        import subprocess, threading
        import pytest
        KEPT = []

        @pytest.fixture(scope="session")
        def server():
            stop = threading.Event()
            thread = threading.Thread(target=stop.wait, name="server")
            thread.start()
            yield
            stop.set()
            thread.join()

        def test_a(server): pass
        def test_opens(server): KEPT.append(open(__file__))
        def test_starts(server): KEPT.append(subprocess.Popen(["sleep", "600"]))
        def test_b(server): pass
        """,
        AUTO,
    )
    assert set(outcome.tests.values()) == {"passed"}
    (left,) = re.findall(r"left behind: (.*)", outcome.text)
    assert "test_it.py (since test_it.py::test_opens)" in left
    assert "sleep 600 (since test_it.py::test_starts)" in left
    assert "server" not in left, "a wide fixture is torn down before the process ends"
    assert re.search(r"left processes running, now ended: sleep 600 \(pid \d+\)", outcome.text)


def test_a_failed_test_with_a_dead_worker_and_a_failure_are_no_culprits(run_pytest):
    """Their processes end well when they run again, also under ``--maxfail``."""
    outcome = run_pytest(
        """
        import multiprocessing, os, pathlib, signal
        def die(): os.kill(os.getpid(), signal.SIGSEGV)
        def test_worker():
            worker = multiprocessing.get_context("fork").Process(target=die)
            worker.start()
            worker.join()
            assert worker.exitcode == 0
        def test_fails(): assert 0
        def test_dies_once():
            if not pathlib.Path("died").exists():
                pathlib.Path("died").touch()
                os.abort()
        def test_last(): pass
        """,
        AUTO,
        "--maxfail=4",
        "--rl-native=off",
    )
    assert {name for name, word in outcome.tests.items() if word == "error"} == set(), outcome.text
    assert outcome.tests["test_last"] == "passed"
    assert "No culprit found: the 2 tests that ran before" in outcome.details["test_dies_once"]


@pytest.mark.parametrize("how", [(AUTO,), (AUTO, "-n", "1"), ("--rl-scope=marked",)])
def test_a_test_that_runs_elsewhere_may_be_the_last_of_its_file(run_pytest, how):
    """What the tests around it have set up is torn down as pytest does it: between the files."""
    run_pytest.write(
        "test_a.py",
        """
        import pytest
        @pytest.fixture(scope="module")
        def wide():
            yield
            raise OSError("wide is torn down")
        def test_before(wide): pass
        @pytest.mark.rl_isolated
        def test_elsewhere(): pass
        """,
    )
    run_pytest.write("test_b.py", "def test_after(): pass\n")
    outcome = run_pytest(None, *how)
    assert "3 passed, 1 error" in outcome.text, outcome.text
    assert "OSError: wide is torn down" in outcome.text

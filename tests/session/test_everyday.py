"""What pytest users rely on works in isolated tests as it does without us."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from pytest_rlstability.child.seeds import seed_of

SUITE = """
    import logging, os, sys, unittest, warnings
    import pytest

    COUNT = {"module": 0, "session": 0}

    @pytest.fixture(scope="module")
    def module_thing():
        COUNT["module"] += 1
        yield COUNT["module"]

    @pytest.fixture(scope="session")
    def session_thing(tmp_path_factory):
        COUNT["session"] += 1
        return tmp_path_factory.mktemp("wide")

    def test_capsys(capsys):
        print("hello")
        assert capsys.readouterr().out == "hello\\n"

    def test_capfd(capfd):
        os.system("echo from the shell")
        assert capfd.readouterr().out == "from the shell\\n"

    def test_caplog(caplog):
        logging.getLogger("x").warning("logged")
        assert caplog.messages == ["logged"]

    def test_tmp_path(tmp_path):
        (tmp_path / "file").write_text("x")
        assert tmp_path.name == "test_tmp_path0"

    def test_monkeypatch(monkeypatch):
        monkeypatch.setenv("RL_VARIABLE", "1")

    def test_is_clean():
        assert "RL_VARIABLE" not in os.environ

    def test_wide_1(module_thing, session_thing):
        assert (module_thing, session_thing.is_dir()) == (1, True)

    def test_wide_2(module_thing, session_thing):
        assert (module_thing, session_thing.is_dir()) == (1, True)

    @pytest.mark.parametrize("value", [1, "two", None])
    def test_parametrized(value):
        assert value != 3

    class TestClass:
        state = 0

        def test_method(self):
            TestClass.state += 1
            assert TestClass.state == 1

        def test_other_method(self):
            TestClass.state += 1
            assert TestClass.state == 1

    class TestUnit(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.made = True

        def test_unit(self):
            self.assertTrue(self.made)

        @unittest.skip("not today")
        def test_unit_skipped(self):
            pass

        @unittest.expectedFailure
        def test_unit_expected(self):
            self.fail()

    @pytest.mark.skip(reason="skipped by mark")
    def test_skip():
        pass

    def test_skip_inside():
        pytest.skip("skipped inside")

    @pytest.mark.xfail(strict=True)
    def test_xfail():
        assert False

    @pytest.mark.xfail(strict=True)
    def test_xpass_strict():
        pass

    @pytest.mark.xfail
    def test_xpass():
        pass

    def test_xfail_inside():
        pytest.xfail("known")

    def test_warns():
        warnings.warn("look here", UserWarning)

    @pytest.mark.filterwarnings("error")
    def test_warning_is_error():
        warnings.warn("look here", UserWarning)

    def test_fails_with_output():
        print("the output")
        logging.getLogger("y").error("the log")
        assert {"a": 1} == {"a": 2}

    @pytest.fixture
    def broken():
        raise RuntimeError("broken fixture")

    def test_broken_setup(broken):
        pass

    @pytest.fixture
    def broken_later():
        yield
        raise RuntimeError("broken tear-down")

    def test_broken_teardown(broken_later):
        pass

    def test_property(record_property, record_testsuite_property):
        record_property("plain", 1)
        record_property("object", object())
        record_testsuite_property("suite", "wide")

    def test_unpicklable_exception():
        class Odd(Exception):
            def __init__(self, a, b):
                super().__init__(lambda: a)
        raise Odd(1, 2)

    def test_non_utf8(capfdbinary):
        os.write(1, b"\\xff\\xfe")

    def test_surrogate():
        assert "\\ud800" == ""

    def test_doc():
        '''
        >>> 1 + 1
        2
        '''

    class TestParts(unittest.TestCase):
        def test_parts(self):
            for number in range(3):
                with self.subTest(number=number):
                    self.assertNotEqual(number, 1)

    def test_subtests(subtests):
        for number in range(3):
            with subtests.test(number=number):
                assert number != 1
"""


def counts(text: str) -> str:
    return text.strip().splitlines()[-1].split(" in ")[0].strip("= ")


def test_attributes_for_junit(run_pytest):
    source = """
    def test_it(record_xml_attribute, record_testsuite_property):
        record_xml_attribute("story", "walker")
        record_testsuite_property("suite", "wide")
    """
    outcome = run_pytest(source)
    assert outcome.tests == {"test_it": "passed"}
    written = (run_pytest.path / "junit.xml").read_text()
    assert 'story="walker"' in written
    assert '<property name="suite" value="wide"' in written


LATE = """
    import threading, time

    class Node:
        def __del__(self):
            raise RuntimeError("in a finalizer")

    def test_thread():
        def late():
            time.sleep(0.3)
            raise RuntimeError("in a thread")
        threading.Thread(target=late).start()

    def test_cycle():
        node = Node()
        node.itself = node
"""


ERRORS = [f"-Werror::pytest.Pytest{kind}ExceptionWarning" for kind in ("UnhandledThread", "Unraisable")]


@pytest.mark.parametrize("filters", [[], ERRORS])
def test_what_is_raised_after_a_tests_end_is_told(run_pytest, filters):
    outcome = run_pytest(LATE, *filters)
    assert outcome.tests == {"test_thread": "passed", "test_cycle": "passed"}
    assert "2 warnings" in outcome.text
    assert "Exception in thread" in outcome.text
    assert re.search("Exception ignored (in|while calling deallocator)", outcome.text)
    assert "2 warnings" not in run_pytest(LATE, "-W", "ignore").text


@pytest.mark.slow
def test_outcomes_are_the_same_as_without_us(run_pytest):
    if not hasattr(pytest, "Subtests"):
        pytest.skip("subtests came with pytest 9")
    arguments = ("--doctest-modules", "-ra", "--durations=3")
    plain = run_pytest(SUITE, *arguments, on=False)
    for backend in ("zygote", "spawn"):
        isolated = run_pytest(SUITE, *arguments, f"--rl-backend={backend}")
        # Class and module state does not leak from test to test: two tests that counted on it pass here.
        expected = {**plain.tests, "test_other_method": "passed"}
        assert isolated.tests == expected, isolated.text
        for name, message in plain.messages.items():
            if "0x" not in message and name != "test_other_method":
                assert isolated.messages[name] == message
        for part in (
            "the output",
            "the log",
            "look here",
            "broken tear-down",
            "slowest 3 durations",
            '<property name="suite" value="wide"',
            "skipped by mark",
        ):
            assert part in isolated.text + (run_pytest.path / "junit.xml").read_text(), part
        assert isolated.properties["test_property"]["plain"] == "1"
        assert isolated.properties["test_property"]["object"].startswith("<object object at")


@pytest.mark.slow
def test_switches_of_pytest(run_pytest):
    run_pytest.write(
        "test_it.py",
        """
        import pytest

        @pytest.fixture(scope="module")
        def wide():
            yield

        def test_a(wide): pass
        def test_b(): assert False
        def test_c(wide): assert False
        def test_d(): pass
        """,
    )
    assert run_pytest.run("-x").tests == {"test_a": "passed", "test_b": "failed"}
    assert list(run_pytest.run("--maxfail=2").tests) == ["test_a", "test_b", "test_c"]
    assert list(run_pytest.run("--lf").tests) == ["test_b", "test_c"]
    assert list(run_pytest.run("-k", "a or d").tests) == ["test_a", "test_d"]
    shown = run_pytest.run("--setup-show", "-k", "test_a").text
    assert "SETUP    M wide" in shown
    assert "TEARDOWN M wide" in shown
    assert "said aloud" in run_pytest("def test_e():\n    print('said aloud')\n", "-s").text
    for plugin in ("no:warnings", "no:capture", "no:faulthandler", "no:junitxml", "no:cacheprovider", "no:logging"):
        outcome = run_pytest.run("-p", plugin, *(["-p", "no:junitxml"] if plugin == "no:junitxml" else []))
        assert "1 passed" in outcome.text or "unrecognized" in outcome.text, outcome.text


def test_log_cli_and_log_file(run_pytest):
    outcome = run_pytest(
        """
        import logging
        def test_a(): logging.getLogger().warning("first line")
        def test_b(): logging.getLogger().warning("second line")
        """,
        "-o", "log_cli=true", "--log-file=log.txt",
    )  # fmt: skip
    for part in ("first line", "second line"):
        assert part in outcome.text
        assert part in (run_pytest.path / "log.txt").read_text()


def test_pytest_exit_and_keyboard_interrupt(run_pytest):
    outcome = run_pytest("import pytest\ndef test_a(): pytest.exit('enough', 5)\ndef test_b(): pass\n")
    assert outcome.code == 5
    assert "enough" in outcome.text
    outcome = run_pytest("def test_a(): raise KeyboardInterrupt\ndef test_b(): pass\n")
    assert outcome.code == 2
    assert "test_b" not in outcome.tests


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["zygote", "spawn"])
def test_interrupt_ends_every_process(run_pytest, backend):
    run_pytest.write(
        "test_it.py",
        """
        import os, signal, subprocess, time
        def test_it():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            grandchild = subprocess.Popen(["sleep", "302"], start_new_session=True)
            with open("pids", "w") as file:
                file.write(f"{os.getpid()} {grandchild.pid}")
            os.rename("pids", "ready")
            time.sleep(300)
        """,
    )
    command = [sys.executable, "-m", "pytest", "--rl-stability", f"--rl-backend={backend}", "test_it.py"]
    process = subprocess.Popen(command, cwd=run_pytest.path, stdout=subprocess.PIPE, start_new_session=True, text=True)
    ready = run_pytest.path / "ready"
    while not ready.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    for pid in map(int, ready.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_killed_pytest_takes_everything_with_it(run_pytest):
    run_pytest.write(
        "test_it.py",
        """
        import os, subprocess, time
        def test_it():
            grandchild = subprocess.Popen(["sleep", "303"], start_new_session=True)
            with open("pids", "w") as file:
                file.write(f"{os.getppid()} {os.getpid()} {grandchild.pid}")
            os.rename("pids", "ready")
            time.sleep(300)
        """,
    )
    command = [sys.executable, "-m", "pytest", "--rl-stability", "test_it.py"]
    process = subprocess.Popen(command, cwd=run_pytest.path, stdout=subprocess.DEVNULL)
    ready = run_pytest.path / "ready"
    while not ready.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    for pid in map(int, ready.read_text().split()):
        _wait_until_gone(pid)


def _wait_until_gone(pid: int) -> None:
    for _ in range(1000):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except OSError:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} outlived pytest")


GROUPS = """
    import ctypes, os
    import pytest

    @pytest.fixture(scope="module")
    def wide():
        return os.getpid()

    def test_a(wide):
        assert wide == os.getpid()

    def test_b(wide):
        assert wide == os.getpid()

    def test_dies(wide):
        ctypes.string_at(0)

    def test_c(wide):
        assert wide == os.getpid()

    @pytest.mark.rl_isolated
    def test_own(wide):
        pass

    def test_d(wide):
        assert wide == os.getpid()
"""


def test_a_group_shares_a_process_and_survives_a_crash(run_pytest):
    outcome = run_pytest(GROUPS, "--rl-group=module", "--rl-native=off")
    assert outcome.messages["test_dies"] == "CRASH: SIGSEGV in call"
    assert [name for name, word in outcome.tests.items() if word != "passed"] == ["test_dies"]
    processes = {event["test"]: event["pid"] for event in outcome.events if event["event"] == "started"}
    pid = {name.split("::")[1]: number for name, number in processes.items()}
    assert pid["test_a"] == pid["test_b"] == pid["test_dies"]
    assert len({pid["test_a"], pid["test_c"], pid["test_own"]}) == 3
    assert pid["test_c"] == pid["test_d"], "the group's process waits while a marked test runs in its own"
    assert "6 tests in 3 processes (zygote), 1 crash" in outcome.text


@pytest.mark.slow
def test_marked_tests_share_a_process_when_their_marker_says_so(run_pytest):
    outcome = run_pytest(
        """
        import os
        import pytest
        pytestmark = pytest.mark.rl_isolated(group="module", backend="spawn")

        @pytest.fixture(scope="module")
        def wide():
            yield os.getpid()
            print("torn down")

        def test_a(wide): assert wide == os.getpid()
        def test_b(wide): assert wide == os.getpid()
        """
    )
    assert outcome.tests == {"test_a": "passed", "test_b": "passed"}
    assert "2 tests in 1 process (spawn)" in outcome.text


def test_a_crash_at_the_exit_of_a_group_fails_the_test_that_made_it(run_pytest):
    outcome = run_pytest(
        "import atexit, os\ndef test_a(): atexit.register(os.abort)\ndef test_b(): pass\n", "--rl-group=module"
    )
    assert outcome.tests == {"test_a": "error", "test_b": "passed"}
    assert "CRASH: SIGABRT at exit" in outcome.messages["test_a"]


def test_scope_marked(run_pytest):
    outcome = run_pytest(
        """
        import os
        import pytest
        PID = os.getpid()
        def test_plain(): assert os.getpid() == PID
        @pytest.mark.forked
        def test_forked(): assert os.getpid() != PID
        @pytest.mark.rl_isolated
        def test_isolated(): assert os.getpid() != PID
        """,
        "--rl-scope=marked",
    )
    assert set(outcome.tests.values()) == {"passed"}
    assert "2 tests in 2 processes" in outcome.text


def test_off_changes_nothing_and_says_so(run_pytest):
    source = """
        import os
        import pytest
        PID = os.getpid()
        @pytest.mark.rl_isolated(env={"A": "1"})
        @pytest.mark.rl_no_stall
        def test_marked(rl_stage, rl_heartbeat):
            with rl_stage("a"):
                rl_heartbeat()
            assert os.getpid() == PID
        def test_plain(): pass
    """
    outcome = run_pytest(source, on=False)
    assert outcome.tests == {"test_marked": "passed", "test_plain": "passed"}
    assert "rl-stability: off, 1 marked test runs unchecked (--rl-stability checks them)" in outcome.text
    assert "rl-stability" not in run_pytest("def test_plain(): pass", on=False).text


def test_env_is_set_before_the_interpreter_starts(run_pytest):
    outcome = run_pytest(
        """
        import os, sys
        import pytest
        @pytest.mark.rl_isolated(env={"PYTHONOPTIMIZE": "1", "MY_WORD": "x"})
        def test_env():
            if not (sys.flags.optimize == 1 and os.environ["MY_WORD"] == "x"):
                pytest.fail("not set")
        """
    )
    assert outcome.tests == {"test_env": "passed"}
    assert "(spawn)" in outcome.text


def test_ini_in_pyproject(run_pytest):
    source = "import os\nPID = os.getpid()\ndef test_it(): assert os.getpid() != PID\n"
    run_pytest.write("test_it.py", source)
    run_pytest.write("pyproject.toml", "[tool.pytest.ini_options]\nrl_stability = true\nrl_group = 'module'\n")
    outcome = run_pytest.run(on=False)
    assert outcome.tests == {"test_it": "passed"}, outcome.text
    assert "a process per module" in outcome.text
    if int(pytest.__version__.split(".")[0]) >= 9:
        run_pytest.write("pyproject.toml", "[tool.pytest]\nrl_stability = true\nrl_stall_after = '10 s'\n")
        assert "1 test in 1 process" in run_pytest.run(on=False).text


def test_xdist(run_pytest):
    outcome = run_pytest(
        """
        import ctypes, warnings
        import pytest
        @pytest.mark.parametrize("number", range(6))
        def test_ok(number): warnings.warn(f"number {number}")
        def test_dies(rl_stage):
            with rl_stage("create model"):
                ctypes.string_at(0)
        """,
        "-n", "2",
    )  # fmt: skip
    assert outcome.messages["test_dies"] == "CRASH: SIGSEGV in call, stage 'create model'"
    assert "died in  create model" in outcome.text
    assert "Reproduce: python -m pytest --rl-stability" in outcome.text
    assert "7 tests in 7 processes (zygote), 1 crash" in outcome.text
    assert "worker 'gw" not in outcome.text, "no worker died"
    assert outcome.properties["test_dies"]["rl_stability.stage"] == "create model"
    finished = [event for event in outcome.events if event["event"] == "finished"]
    assert len(finished) == 7
    assert {event["worker"] for event in finished} <= {"gw0", "gw1"}
    assert all(event["schema"] == 1 and event["host"] for event in outcome.events)


@pytest.mark.slow
def test_coverage_counts_lines_run_in_children(run_pytest):
    run_pytest.write("lib.py", "def one():\n    return 1\n\n\ndef two():\n    return 2\n")
    run_pytest.write(
        "test_it.py",
        """
        import lib
        import pytest
        def test_one(): assert lib.one() == 1
        @pytest.mark.rl_isolated(backend="spawn")
        def test_two(): assert lib.two() == 2
        """,
    )
    outcome = run_pytest.run("--cov=lib", "--cov-report=term-missing")
    assert "lib.py       4      0   100%" in outcome.text, outcome.text
    outcome = run_pytest.run("--cov=lib", "--cov-report=term-missing", "-n", "2")
    assert "lib.py       4      0   100%" in outcome.text, outcome.text
    command = [sys.executable, "-m", "coverage", "run", "--include=lib.py", "-m", "pytest", "--rl-stability"]
    subprocess.run(command, cwd=run_pytest.path, check=True, capture_output=True)
    report = [sys.executable, "-m", "coverage", "report"]
    assert "100%" in subprocess.run(report, cwd=run_pytest.path, capture_output=True, text=True).stdout


def test_other_plugins_have_their_turn(run_pytest):
    outcome = run_pytest(
        """
        import asyncio, os
        import pytest

        @pytest.mark.flaky(reruns=2)
        def test_rerun():
            with open("count", "a") as file:
                file.write("x")
            assert os.path.getsize("count") == 3

        @pytest.mark.asyncio
        async def test_async():
            await asyncio.sleep(0)
        """
    )
    assert outcome.tests == {"test_rerun": "passed", "test_async": "passed"}, outcome.text
    assert "2 rerun" in outcome.text


@pytest.mark.slow
def test_pytester_inside_an_isolated_test(run_pytest):
    outcome = run_pytest(
        """
        pytest_plugins = ["pytester"]
        def test_it(pytester):
            pytester.makepyfile(test_inner="def test_inner(): pass")
            pytester.runpytest_inprocess().assert_outcomes(passed=1)
            pytester.runpytest_subprocess("--rl-stability").assert_outcomes(passed=1)
        """
    )
    assert outcome.tests == {"test_it": "passed"}, outcome.text


def test_hooks_of_the_users_conftest_run_once_per_report(run_pytest):
    run_pytest.write(
        "conftest.py",
        """
        import os
        def pytest_runtest_logreport(report):
            with open("seen", "a") as file:
                file.write(f"{report.when} {os.getpid()}\\n")
        """,
    )
    run_pytest("def test_a(): pass\ndef test_b(): pass\n")
    seen = [line.split() for line in (run_pytest.path / "seen").read_text().splitlines()]
    assert [when for when, _ in seen] == ["setup", "call", "teardown"] * 2
    assert len({pid for _, pid in seen}) == 1


def test_durations_are_the_tests_own(run_pytest):
    outcome = run_pytest(
        "import time\ndef test_a(): time.sleep(0.3)\ndef test_b(): time.sleep(0.3); __import__('os').abort()\n"
    )
    assert outcome.seconds["test_a"] >= 0.3
    assert outcome.seconds["test_b"] >= 0.3


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--rl-group=module",), ("--rl-backend=spawn",)])
def test_every_test_starts_from_a_seed_of_its_own(run_pytest, arguments):
    outcome = run_pytest(
        """
        import random
        try:
            from numpy.random import rand
        except ImportError:
            rand = random.random
        def test_a(): assert False, f"drew {random.random()} {rand()}"
        def test_b(): assert False, f"drew {random.random()} {rand()}"
        """,
        "--rl-seed=7",
        *arguments,
    )
    for name in ("test_a", "test_b"):
        drawn = random.Random(seed_of(7, f"test_it.py::{name}")).random()
        assert f"drew {drawn} " in outcome.messages[name]


@pytest.mark.parametrize("option", ["--setup-only", "--setup-plan", "--setup-show"])
def test_only_the_set_up(run_pytest, option):
    outcome = run_pytest(
        """
        import pytest
        @pytest.fixture
        def number(): return 1
        def test_it(number): assert number == (2 if OPTION else 1)
        """.replace("OPTION", str(option != "--setup-show")),
        option,
    )
    assert outcome.code == 0, outcome.text
    assert "SETUP    F number" in outcome.text
    assert "internal error" not in outcome.text

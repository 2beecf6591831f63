"""What plugins and conftest files keep between tests is there in every process, or said to be lost."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

AUTO = "--rl-group=auto"
OWN = "--rl-group=test"

INCREMENTAL = """
    import pytest
    def pytest_configure(config):
        config.addinivalue_line("markers", "incremental: the rest fails with the first that fails")
    def pytest_runtest_makereport(item, call):
        if "incremental" in item.keywords and call.excinfo is not None:
            item.parent._previousfailed = item
    def pytest_runtest_setup(item):
        if "incremental" in item.keywords:
            previous = getattr(item.parent, "_previousfailed", None)
            if previous is not None:
                pytest.xfail(f"previous test failed ({previous.name})")
"""
GATHERS = """
    import collections, json, pytest
    RESULTS, CALLS, KEY = [], collections.Counter(), pytest.StashKey()
    class Timer:
        total = 0
    class Seen:
        def __init__(self): self.names = set()
        def pytest_runtest_teardown(self, item): self.names.add(item.name)
        def pytest_sessionfinish(self): RESULTS.append(sorted(self.names))
    def pytest_configure(config):
        config.gathered, config.stash[KEY] = [], {}
        config.pluginmanager.register(Seen())
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        if report.when == "call":
            RESULTS.append((item.name, report.outcome))
        return report
    def pytest_runtest_call(item):
        CALLS[item.name] += 1
        Timer.total += 1
        item.config.gathered.append(item)
    @pytest.fixture
    def noted(request):
        request.config.stash[KEY][request.node.name] = "noted"
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(session):
        config = session.config
        kept = [RESULTS, CALLS, Timer.total, [item.name for item in config.gathered], config.stash[KEY]]
        with open("gathered.json", "w") as file:
            json.dump(kept, file)
"""
SUITE = """
    import os, pytest
    def test_passes(noted): pass
    def test_fails(): assert 0
    @pytest.mark.rl_isolated
    def test_alone(noted): pass
    @pytest.mark.skip
    def test_skipped(): pass
    def test_last(noted): pass
"""


@pytest.mark.parametrize("how", [(AUTO,), (OWN,), (AUTO, "--rl-backend=spawn")])
def test_what_a_conftest_gathers_is_what_plain_pytest_has(run_pytest, how):
    run_pytest.write("conftest.py", GATHERS)
    run_pytest(SUITE, on=False)
    plain = json.loads((run_pytest.path / "gathered.json").read_text())
    assert len(plain[0]) == 5
    outcome = run_pytest(None, *how)
    assert json.loads((run_pytest.path / "gathered.json").read_text()) == plain, outcome.text
    assert "test's process only" not in outcome.text


def test_a_crash_is_gathered_too(run_pytest):
    run_pytest.write("conftest.py", GATHERS)
    outcome = run_pytest(
        "import os\ndef test_a(): pass\ndef test_dies(): os.abort()\ndef test_b(): pass\n", AUTO, "--rl-native=off"
    )
    results, *_ = json.loads((run_pytest.path / "gathered.json").read_text())
    assert results[:3] == [["test_a", "passed"], ["test_dies", "failed"], ["test_b", "passed"]], outcome.text


@pytest.mark.parametrize("how", [AUTO, OWN])
def test_the_incremental_recipe(run_pytest, how):
    """In one process, in several, and after a death."""
    run_pytest.write("conftest.py", INCREMENTAL)
    outcome = run_pytest(
        """
        import os, pytest
        @pytest.mark.incremental
        class TestOne:
            def test_a(self): pass
            def test_b_fails(self): assert 0
            def test_c(self): pass
        @pytest.mark.incremental
        class TestTwo:
            @pytest.mark.rl_isolated
            def test_d_fails(self): assert 0
            def test_e(self): pass
            @pytest.mark.rl_isolated
            def test_f(self): pass
        @pytest.mark.incremental
        class TestThree:
            def test_g_dies(self): os.abort()
            def test_h(self): pass
        class TestFour:
            def test_i(self): pass
        """,
        how,
        "--rl-native=off",
    )
    expected = {
        "test_a": "passed", "test_b_fails": "failed", "test_c": "xfailed",
        "test_d_fails": "failed", "test_e": "xfailed", "test_f": "xfailed",
        "test_g_dies": "failed", "test_h": "xfailed", "test_i": "passed",
    }  # fmt: skip
    assert outcome.tests == expected, outcome.text


def test_what_cannot_be_carried_is_named(run_pytest):
    run_pytest.write(
        "conftest.py",
        """
        import pytest
        LOCKS, LOG = [], []
        SERVER = None
        @pytest.fixture
        def server():
            global SERVER
            import threading
            SERVER = threading.Lock()
            LOCKS.append(threading.Lock())
        def pytest_runtest_call(item): LOG.append(item.name)
        def pytest_sessionfinish(): print(SERVER, LOCKS, LOG)
        """,
    )
    outcome = run_pytest("def test_a(server): pass\n", AUTO)
    assert outcome.tests == {"test_a": "passed"}
    assert "rl-stability: conftest.py: SERVER changed in a test's process only" in outcome.text
    assert "rl-stability: conftest.py: LOCKS changed in a test's process only" in outcome.text
    assert "conftest.py: LOG" not in outcome.text
    outcome = run_pytest(None, AUTO, "-orl_in_process_plugins=conftest.py")
    assert "1 test runs in pytest's own process, where a crash ends the run: 1 for conftest.py" in outcome.text
    assert "test's process only" not in outcome.text


def test_an_ordinary_conftest_says_nothing(run_pytest):
    run_pytest.write(
        "conftest.py",
        """
        import logging, threading, pytest
        LOGGER, LOCK, CACHE = logging.getLogger(), threading.Lock(), {}
        @pytest.fixture(scope="session")
        def lock(): return LOCK
        @pytest.fixture
        def cache(lock):
            CACHE["lock"] = lock
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            setattr(item, "report_" + report.when, report)
            return report
        def pytest_runtest_setup(item): pass
        """,
    )
    outcome = run_pytest("def test_a(cache): pass\ndef test_b(cache): assert 0\n", AUTO)
    assert outcome.tests == {"test_a": "passed", "test_b": "failed"}
    assert "only" not in outcome.text
    assert "own process, where" not in outcome.text


def test_tests_that_stay_in_pytests_process_mix_with_others(run_pytest):
    """What they keep reaches the others, and wide fixtures are torn down where plain pytest does it."""
    run_pytest.write("conftest.py", INCREMENTAL)
    run_pytest.write(
        "benched.py",
        """
        import pytest
        @pytest.fixture
        def bench(): return "bench"
        """,
    )
    outcome = run_pytest(
        """
        import os, pytest
        PID = os.getpid()
        @pytest.fixture(scope="module")
        def wide(): yield os.getpid()
        @pytest.mark.incremental
        class TestIt:
            def test_a(self, wide): assert os.getpid() != PID
            def test_here(self, bench, wide): assert os.getpid() != PID
            def test_b(self, wide): pass
        def test_c(wide): assert os.getpid() == wide
        """,
        AUTO,
        "-p", "benched", "-orl_in_process_plugins=benched",
    )  # fmt: skip
    assert outcome.tests == {"test_a": "passed", "test_here": "failed", "test_b": "xfailed", "test_c": "passed"}
    assert "1 test runs in pytest's own process, where a crash ends the run: 1 for benched" in outcome.text


DIES_ONCE = """
    import os, pathlib, pytest
    def dies_once(name):
        if not pathlib.Path(name).exists():
            pathlib.Path(name).touch()
            os.abort()
    def test_before(): pass
    def test_once(): dies_once("once")
    @pytest.mark.rl_isolated
    def test_once_alone(): dies_once("once_alone")
    def test_dies_then_fails():
        dies_once("then")
        assert 0
    def test_always(): os.abort()
    def test_after(): pass
"""


@pytest.mark.parametrize("how", [(AUTO,), (AUTO, "-n", "1")])
def test_reruns_repeat_a_death(run_pytest, how):
    outcome = run_pytest(DIES_ONCE, *how, "--reruns=2", "--rl-native=off")
    assert outcome.tests == {
        "test_before": "passed", "test_once": "passed", "test_once_alone": "passed",
        "test_dies_then_fails": "failed", "test_always": "failed", "test_after": "passed",
    }, outcome.text  # fmt: skip
    assert "2 failed, 4 passed" in outcome.text
    assert "6 rerun" in outcome.text, "each death and each failure counts, and no test has more than three attempts"
    assert outcome.messages["test_always"].startswith("CRASH: SIGABRT")


def test_reruns_of_other_failures_do_not_repeat_a_death(run_pytest):
    outcome = run_pytest(
        "import os\ndef test_dies(): os.abort()\n", AUTO, "--reruns=2", "--only-rerun=OSError", "--rl-native=off"
    )
    assert outcome.tests == {"test_dies": "failed"}
    assert "rerun" not in outcome.text.splitlines()[-1]


def test_a_breakpoint_waits_as_long_as_the_user_does(run_pytest):
    """It is read in the test's process, and no limit ends the test meanwhile."""
    run_pytest.write("test_it.py", "def test_it():\n    x = 5\n    breakpoint()\n    assert x == 6\n")
    command = [
        sys.executable, "-m", "pytest", "--rl-stability", "--rl-stall-after=1s", "--rl-limit=1s", "--rl-native=off",
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=run_pytest.path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=0
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        seen = ""
        while "(Pdb)" not in seen:
            seen += run.stdout.read(1)
        time.sleep(3)
        rest, _ = run.communicate("p x + 1000\nx = 6\nc\n", timeout=60)
    assert "1005" in rest
    assert "1 passed" in rest


def test_an_attached_debugger_keeps_tests_in_pytests_process(run_pytest):
    run_pytest.write("test_it.py", "import os\nPID = os.getpid()\ndef test_it(): assert os.getpid() == PID\n")
    run_pytest.write("other.py", "x = 1\n")
    steps = ("-c", "break other.py:1", "-c", "continue", "-c", "quit")  # pdb leaves a process without breakpoints
    command = [sys.executable, "-m", "pdb", *steps, "-m", "pytest", "--rl-stability"]
    run = subprocess.run(command, cwd=run_pytest.path, capture_output=True, text=True, timeout=60)
    assert "1 passed" in run.stdout
    assert "a debugger is attached, which keeps tests in pytest's own process" in run.stdout


def test_reports_decide_about_later_tests(run_pytest):
    """``pytest_runtest_logreport`` is called in pytest's process, ``pytest_runtest_setup`` in the test's."""
    run_pytest.write(
        "conftest.py",
        """
        import pytest
        FAILED = set()
        def pytest_runtest_logreport(report):
            if report.failed:
                FAILED.add(report.nodeid.partition("::")[0])
        def pytest_runtest_setup(item):
            if item.nodeid.partition("::")[0] in FAILED:
                pytest.skip("a test before it failed")
        """,
    )
    source = """
        import pytest
        def test_a(): pass
        def test_b_fails(): assert 0
        def test_c(): pass
        @pytest.mark.rl_isolated
        def test_d(): pass
    """
    for how in (AUTO, OWN):
        outcome = run_pytest(source, how)
        assert list(outcome.tests.values()) == ["passed", "failed", "skipped", "skipped"], outcome.text


def test_hooks_around_a_test_count_once(run_pytest):
    """Those around the whole protocol run in pytest's process and in the test's."""
    run_pytest.write(
        "conftest.py",
        """
        import pytest
        AROUND, MADE = [], []
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(item):
            AROUND.append(item.name)
            return (yield)
        def pytest_runtest_makereport(item, call):
            MADE.append(call.when)
        def pytest_sessionfinish():
            print("\\ncounted", AROUND, MADE)
        """,
    )
    outcome = run_pytest("def test_a(): pass\ndef test_b(): pass\n", AUTO, "-s")
    assert f"counted ['test_a', 'test_b'] {['setup', 'call', 'teardown'] * 2}" in outcome.text


SYRUPY = """
    import pathlib, pytest
    class Used:
        def __init__(self): self.names = set()
    def pytest_addoption(parser): parser.addoption("--snapshot-update", action="store_true")
    def pytest_sessionstart(session): session.config._used = Used()
    def pytest_sessionfinish(session):
        for file in pathlib.Path("snapshots").glob("*"):
            if session.config.option.snapshot_update and file.name not in session.config._used.names:
                file.unlink()
    @pytest.fixture
    def snapshot(request):
        request.config._used.names.add(request.node.name)
        return pathlib.Path("snapshots", request.node.name).read_text()
"""
"""What syrupy does, as little of it as deletes snapshots. Syrupy itself does not go with pytester in one process."""


def test_snapshots_are_not_deleted(run_pytest):
    """Seen before: no test used a snapshot, and ``--snapshot-update`` deleted all of them."""
    run_pytest.write("syrupy.py", SYRUPY)
    for name in ("test_one", "test_two"):
        run_pytest.write(f"snapshots/{name}", "a snapshot")
    outcome = run_pytest(
        """
        import pytest
        def test_plain(): pass
        def test_one(snapshot): assert snapshot
        @pytest.mark.rl_isolated
        def test_two(snapshot): assert snapshot
        """,
        AUTO, "-p", "syrupy", "--snapshot-update",
    )  # fmt: skip
    assert set(outcome.tests.values()) == {"passed"}, outcome.text
    assert len([*run_pytest.path.glob("snapshots/*")]) == 2
    assert "2 for syrupy; 1 marked test unchecked" in outcome.text


@pytest.mark.parametrize("how", [AUTO, OWN])
def test_an_unknown_plugin_of_that_kind_is_carried(run_pytest, how):
    run_pytest.write("unheard_of.py", SYRUPY)
    for name in ("test_one", "test_two", "test_unused"):
        run_pytest.write(f"snapshots/{name}", "a snapshot")
    outcome = run_pytest(
        """
        import pytest
        def test_one(snapshot): assert snapshot
        @pytest.mark.rl_isolated
        def test_two(snapshot): assert snapshot
        """,
        how, "-p", "unheard_of", "--snapshot-update",
    )  # fmt: skip
    assert sorted(path.name for path in run_pytest.path.glob("snapshots/*")) == ["test_one", "test_two"], outcome.text
    assert "own process, where" not in outcome.text


@pytest.mark.parametrize("how", [AUTO, OWN])
def test_pytest_dependency(run_pytest, monkeypatch, how):
    pytest.importorskip("pytest_dependency")
    monkeypatch.delenv("PYTEST_ADDOPTS")
    outcome = run_pytest(
        """
        import os, pytest
        depends = pytest.mark.dependency
        @depends()
        def test_a(): pass
        @depends(depends=["test_a"])
        def test_on_a(): pass
        @depends()
        def test_dies(): os.abort()
        @depends(depends=["test_dies"])
        def test_on_dies(): pass
        @pytest.mark.rl_isolated
        @depends(depends=["test_on_a"])
        def test_alone(): pass
        @depends(depends=["test_alone", "test_a"])
        def test_on_alone(): pass
        """,
        how,
        "--rl-native=off",
    )
    words = ["passed", "passed", "failed", "skipped", "passed", "passed"]
    assert list(outcome.tests.values()) == words, outcome.text


def test_allure_has_every_test_once(run_pytest, monkeypatch):
    pytest.importorskip("allure_pytest")
    monkeypatch.delenv("PYTEST_ADDOPTS")
    outcome = run_pytest(
        """
        import os, pytest
        def test_passes(): pass
        def test_fails(): assert 0
        def test_dies(): os.abort()
        @pytest.mark.rl_isolated
        def test_alone(): pass
        @pytest.mark.skip
        def test_skipped(): pass
        """,
        AUTO,
        "--alluredir=results",
        "--rl-native=off",
    )
    results = [json.loads(file.read_text()) for file in run_pytest.path.glob("results/*-result.json")]
    assert sorted((one["name"], one["status"]) for one in results) == [
        ("test_alone", "passed"), ("test_dies", "failed"), ("test_fails", "failed"),
        ("test_passes", "passed"), ("test_skipped", "skipped"),
    ], outcome.text  # fmt: skip
    (dead,) = [one for one in results if one["name"] == "test_dies"]
    assert dead["statusDetails"]["message"].startswith("CRASH: SIGABRT in call")
    assert dead["fullName"] == "test_it#test_dies"
    assert outcome.tests["test_dies"] == "failed", "JUnit has it too"

"""``rl_flaky``: the same test again and again in fresh processes, and one answer."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from conftest import Outcome, _read_junit

from pytest_rlstability.child import seeds
from pytest_rlstability.session.flaky_runner import free_cores, seed_of

SEED = 10
"""Chosen so that test_half passes, crashes twice and fails once before it is found out."""


def draw(seed: int, test: str) -> float:
    """What the first ``random.random()`` of a test gives in a run with this seed."""
    return random.Random(seeds.seed_of(seed, f"test_it.py::{test}")).random()


SUITE = """
    import ctypes, os, random, warnings
    import pytest

    @pytest.mark.rl_flaky
    def test_always():
        warnings.warn("look here")
        print("quiet")

    @pytest.mark.rl_flaky
    def test_half():
        print("drew")
        number = random.random()
        if number < 0.25:
            ctypes.string_at(0)
        assert number > 0.6

    @pytest.mark.rl_flaky
    def test_rarely():
        assert random.random() != UNLUCKY

    @pytest.mark.rl_flaky(max_runs=3)
    def test_too_few():
        pass

    @pytest.mark.rl_flaky
    def test_skips():
        pytest.skip("not here")

    @pytest.mark.rl_flaky
    @pytest.mark.parametrize("value", ["a", "b"])
    def test_parametrized(value, module_thing):
        assert module_thing == 1

    made = 0

    @pytest.fixture(scope="module")
    def module_thing():
        global made
        made += 1
        return made

    @pytest.fixture
    def broken():
        raise OSError("no game")

    @pytest.mark.rl_flaky
    def test_broken_setup(broken):
        pass

    @pytest.mark.rl_flaky
    @pytest.mark.xfail(strict=True)
    def test_expected():
        assert random.random() > 0.6

    @pytest.mark.rl_flaky
    @pytest.mark.xfail(raises=AssertionError)
    def test_expected_by_name():
        assert random.random() > 0.6

    @pytest.mark.rl_flaky
    @pytest.mark.xfail(raises=KeyError)
    def test_expected_otherwise():
        assert random.random() > 0.6

    @pytest.mark.rl_flaky
    @pytest.mark.xfail(strict=True)
    def test_unexpected():
        pass

    @pytest.mark.rl_flaky
    @pytest.mark.xfail(run=False, reason="hangs")
    def test_not_run():
        os.abort()

    @pytest.mark.rl_flaky
    def test_xfails_inside():
        pytest.xfail("known")

    def test_ordinary():
        pass
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """One run of the suite; its tests only read what came of it."""
    path = tmp_path_factory.mktemp("suite")
    source = textwrap.dedent(SUITE).replace("UNLUCKY", repr(draw(seed_of(SEED, 4), "test_rarely")))
    (path / "test_it.py").write_text(source)
    junit, events = path / "junit.xml", path / "events.jsonl"
    unwanted = ("PYTEST_", "CI", "GITHUB_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    environment["COLUMNS"] = "200"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rl-stability", f"--rl-seed={SEED}",
         f"--rl-jsonl={events}", f"--junitxml={junit}", "-o", "junit_family=xunit1", "-rA"],
        cwd=path, capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip
    outcome = Outcome(done.returncode, done.stdout + done.stderr)
    _read_junit(outcome, junit)
    outcome.events = [json.loads(line) for line in events.read_text().splitlines()]
    return outcome


def facts_of(outcome, name):
    return {
        key.removeprefix("rl_stability."): value
        for key, value in outcome.properties[name].items()
        if key.startswith("rl_stability.")
    }


@pytest.mark.slow
def test_every_test_has_one_outcome(suite):
    assert suite.code == 1
    assert suite.tests == {
        "test_always": "passed",
        "test_half": "failed",
        "test_rarely": "passed",
        "test_too_few": "passed",
        "test_skips": "skipped",
        "test_parametrized[a]": "passed",
        "test_parametrized[b]": "passed",
        "test_broken_setup": "failed",
        "test_expected": "xfailed",
        "test_expected_by_name": "xfailed",
        "test_expected_otherwise": "failed",
        "test_unexpected": "failed",
        "test_not_run": "xfailed",
        "test_xfails_inside": "xfailed",
        "test_ordinary": "passed",
    }
    assert "XPASS(strict)" in suite.details["test_unexpected"]


def test_a_clean_test_is_kept_after_thirteen_runs(suite):
    facts = facts_of(suite, "test_always")
    assert (facts["runs"], facts["passes"], facts["pass_rate"], facts["interval_high"]) == ("13", "13", "1.0", "1.0")
    assert "rl_flaky kept: 13 of 13 runs passed, promised 0.95\n" in suite.text
    assert "verdict" not in facts


def test_the_report_says_how_it_fails(suite):
    text = suite.details["test_half"]
    assert suite.messages["test_half"].startswith("FLAKY: ")
    drawn = [draw(seed_of(SEED, number), "test_half") for number in range(1, 61)]
    facts = facts_of(suite, "test_half")
    seen = drawn[: int(facts["runs"])]
    assert facts["verdict"] == "FLAKY"
    assert int(facts["passes"]) == sum(number > 0.6 for number in seen) > 0
    assert sum(number < 0.25 for number in seen) == 2
    assert "2 \N{MULTIPLICATION SIGN} SIGSEGV in string_at" in text
    assert "1 \N{MULTIPLICATION SIGN} AssertionError at test_it.py:16" in text
    assert "".join("F" if n <= 0.6 else "." for n in seen) in text
    assert "Captured stdout" in text
    assert ">       assert number > 0.6" in text
    assert "thread MainThread (crashed here)" in text
    assert f"--rl-seed={SEED} test_it.py::test_half" in text


def test_failures_within_the_promise_pass_and_are_told(suite):
    facts = facts_of(suite, "test_rarely")
    assert int(facts["runs"]) == int(facts["passes"]) + 1
    assert f"rl_flaky kept: {facts['passes']} of {facts['runs']} runs passed" in suite.text
    assert "1 \N{MULTIPLICATION SIGN} AssertionError at test_it.py:20" in suite.text


def test_too_few_runs_pass_with_a_warning(suite):
    assert "rl_flaky undecided: 3 of 3 runs passed" in suite.text
    assert "max_runs=3 was too few" in suite.text


def test_a_failing_fixture_is_a_failed_run(suite):
    assert "2 \N{MULTIPLICATION SIGN} OSError at test_it.py" in suite.messages["test_broken_setup"]
    assert "in set-up" in suite.messages["test_broken_setup"]


def test_a_warning_of_thirteen_runs_is_shown_once(suite):
    assert suite.text.count("UserWarning: look here") == 1


def test_events_and_tally(suite):
    of_half = [event for event in suite.events if event["test"] == "test_it.py::test_half"]
    runs = int(facts_of(suite, "test_half")["runs"])
    assert [event["event"] for event in of_half] == ["started", *["sample"] * runs, "finished"]
    assert [event["lap"] for event in of_half[1:-1]] == list(range(1, runs + 1))
    assert of_half[1]["values"]["run_passed"] == float(draw(SEED, "test_half") > 0.6)
    assert (of_half[-1]["runs"], of_half[-1]["seed"]) == (runs, SEED)
    assert of_half[-1]["verdict"]["word"] == "FLAKY"
    assert re.search(r"rl-stability: 15 tests in \d\d+ processes \(zygote\), .* 5 flaky", suite.text)


WRONG = """
    import pytest

    @pytest.mark.rl_flaky(pass_rate=1.2)
    def test_a(): pass

    @pytest.mark.rl_flaky(0)
    def test_b(): pass

    @pytest.mark.rl_flaky(confidence=1)
    def test_c(): pass

    @pytest.mark.rl_flaky(max_runs=0)
    def test_d(): pass

    @pytest.mark.rl_flaky(passrate=0.9)
    def test_e(): pass

    @pytest.mark.rl_flaky("often")
    def test_f(): pass
"""


def test_bad_arguments_are_usage_errors(run_pytest):
    outcome = run_pytest(WRONG)
    assert outcome.code == 4
    for line, text in (
        (4, "test_a: rl_flaky: pass_rate=1.2 is not a number above 0 and at most 1"),
        (7, "test_b: rl_flaky: pass_rate=0 is not a number above 0"),
        (10, "test_c: rl_flaky: confidence=1 is not a number above 0.5 and below 1"),
        (13, "test_d: rl_flaky: max_runs=0 is not a whole number from 1 up"),
        (16, "test_e: rl_flaky() got an unexpected keyword argument 'passrate'"),
        (19, "test_f: rl_flaky: pass_rate='often' is not a number"),
    ):
        assert f"test_it.py:{line}: {text}" in outcome.text


def test_wrong_option_is_a_usage_error(run_pytest):
    outcome = run_pytest("def test_a(): pass", "--rl-flaky=twice")
    assert outcome.code == 4
    assert "--rl-flaky=twice: choose from auto, serial, once" in outcome.text


COUNTED = """
    import pytest

    @pytest.mark.rl_flaky
    def test_counted():
        with open("count", "a") as file:
            file.write("x")
"""


@pytest.mark.parametrize(
    ("arguments", "on", "line"),
    [
        ([], False, "rl-stability: off, 1 marked test runs unchecked"),
        (["--rl-backend=inprocess"], True, "1 rl_flaky test runs once, unchecked (no fresh processes in the inprocess"),
        (["--rl-flaky=once"], True, "1 rl_flaky test runs once, unchecked (--rl-flaky=once)"),
    ],
)
def test_where_it_is_not_repeated_that_is_said(run_pytest, arguments, on, line):
    outcome = run_pytest(COUNTED, *arguments, on=on)
    assert outcome.tests == {"test_counted": "passed"}
    assert line in outcome.text
    assert (run_pytest.path / "count").read_text() == "x"


@pytest.mark.slow
def test_a_failed_runs_seed_fails_again_alone(run_pytest):
    seed = next(seed for seed in range(1000) if draw(seed, "test_it") > 0.6 > draw(seed_of(seed, 2), "test_it"))
    source = """
        import random
        import pytest

        @pytest.mark.rl_flaky(0.99)
        def test_it():
            number = random.random()
            assert number > 0.6
    """
    outcome = run_pytest(source, f"--rl-seed={seed}")
    assert outcome.messages["test_it"].startswith("FLAKY: ")
    command = re.search(r"This run alone: python -m pytest --rl-stability (.*)", outcome.details["test_it"])
    assert command is not None
    assert command[1] == f"--rl-seed={seed_of(seed, 2)} --rl-flaky=once test_it.py::test_it"
    again = run_pytest.run(*command[1].split())
    assert again.tests == {"test_it": "failed"}
    assert f"assert {draw(seed_of(seed, 2), 'test_it')} > 0.6" in again.details["test_it"]
    whole = run_pytest.run(f"--rl-seed={seed_of(seed, 2)}")
    assert whole.events[1]["seed"] == seed_of(seed, 2)
    assert whole.events[2]["values"]["run_passed"] == 0.0


@pytest.mark.slow
def test_every_run_is_a_fresh_process_that_hashes_by_its_seed(run_pytest):
    source = """
        import os
        import pytest

        @pytest.mark.rl_flaky(max_runs=5)
        def test_it():
            with open("seen", "a") as file:
                file.write(f"{os.getpid()} {os.environ['PYTHONHASHSEED']}\\n")
    """
    outcome = run_pytest(source, "--rl-backend=spawn", "--rl-seed=5", "--rl-flaky=serial")
    assert outcome.tests == {"test_it": "passed"}
    seen = [line.split() for line in (run_pytest.path / "seen").read_text().splitlines()]
    assert len({pid for pid, _ in seen}) == 5
    assert [int(hashed) for _, hashed in seen] == [seed_of(5, number) for number in range(1, 6)]


def test_rerunfailures_does_not_repeat_the_repeated(run_pytest):
    source = """
        import random
        import pytest

        @pytest.mark.flaky(reruns=3)
        @pytest.mark.rl_flaky
        def test_it():
            with open("count", "a") as file:
                file.write("x")
            assert random.random() > 0.6

        @pytest.mark.flaky(reruns=3)
        def test_not_ours():
            with open("other", "a") as file:
                file.write("x")
            assert False
    """
    outcome = run_pytest(source, "--rl-flaky=serial", "--rl-seed=1")
    assert outcome.tests == {"test_it": "failed", "test_not_ours": "failed"}
    runs = facts_of(outcome, "test_it")["runs"]
    assert len((run_pytest.path / "count").read_text()) == int(runs)
    assert len((run_pytest.path / "other").read_text()) == 4


def test_runs_go_on_side_by_side(run_pytest, monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    if free_cores() < 2:
        pytest.skip("one core")
    source = """
        import os, pathlib, time
        import pytest

        @pytest.mark.rl_flaky(max_runs=5)
        def test_it():
            pathlib.Path(f"run{os.getpid()}").touch()
            alone = len(list(pathlib.Path().glob("run*"))) == 1
            patience = time.monotonic() + 20
            while not alone and len(list(pathlib.Path().glob("run*"))) < 3:
                assert time.monotonic() < patience, "nobody beside me"
                time.sleep(0.01)
    """
    outcome = run_pytest(source)
    assert outcome.tests == {"test_it": "passed"}


@pytest.mark.slow
def test_in_xdist_workers(run_pytest):
    source = """
        import random
        import pytest

        @pytest.mark.rl_flaky
        @pytest.mark.parametrize("limit", [0.0, 0.6])
        def test_it(limit):
            assert random.random() > limit
    """
    outcome = run_pytest(source, "-n", "2", "--rl-seed=1")
    assert outcome.tests == {"test_it[0.0]": "passed", "test_it[0.6]": "failed"}
    finished = {event["test"]: event for event in outcome.events if event["event"] == "finished"}
    assert finished["test_it.py::test_it[0.0]"]["runs"] == 13
    assert "1 flaky" in outcome.text


def test_a_run_may_end_the_session(run_pytest):
    source = """
        import pytest

        @pytest.mark.rl_flaky
        def test_it():
            pytest.exit("enough", 9)

        def test_never():
            pass
    """
    outcome = run_pytest(source)
    assert outcome.code == 9
    assert "test_never" not in outcome.tests


def test_interrupt_ends_every_run(run_pytest, monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    run_pytest.write(
        "test_it.py",
        """
        import os, pathlib, time
        import pytest

        @pytest.mark.rl_flaky
        def test_it():
            first = not list(pathlib.Path().glob("run*"))
            pathlib.Path(f"run{os.getpid()}").touch()
            if not first:
                time.sleep(600)
        """,
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rl-stability"],
        cwd=run_pytest.path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    expected = 1 + min(2, free_cores())
    while len(list(run_pytest.path.glob("run*"))) < expected and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 2, text
    for path in run_pytest.path.glob("run*"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.name[3:]), 0)


SHARED = """
    import os, pathlib, threading
    import pytest

    def test_before():
        pass

    def test_leaves_a_bomb():
        pathlib.Path("pid").write_text(str(os.getpid()))

        def explode():
            while not os.path.exists("reported"):
                pass
            os._exit(3)

        threading.Thread(target=explode, daemon=True).start()

    def test_next():
        pass

    def test_after():
        assert os.getpid() != int(pathlib.Path("pid").read_text())
"""

WAITS = """
    import os, pathlib, time

    def pytest_runtest_logfinish(nodeid):
        if nodeid.endswith("test_leaves_a_bomb"):
            pathlib.Path("reported").touch()
            pid, patience = int(pathlib.Path("pid").read_text()), time.monotonic() + 20
            while os.path.exists(f"/proc/{pid}") and time.monotonic() < patience:
                time.sleep(0.01)
"""


def test_a_shared_process_that_dies_between_two_tests(run_pytest):
    run_pytest.write("conftest.py", WAITS)
    outcome = run_pytest(SHARED, "--rl-group=module")
    assert outcome.tests == {
        "test_before": "passed",
        "test_leaves_a_bomb": "error",
        "test_next": "failed",
        "test_after": "passed",
    }
    assert outcome.messages["test_next"] == "CRASH: ended itself with exit code 3 before set-up"
    assert "died after test_it.py::test_leaves_a_bomb had ended" in outcome.details["test_next"]
    assert "CRASH: makes test_it.py::test_next die" in outcome.messages["test_leaves_a_bomb"]


def test_a_shared_process_that_dies_after_its_last_test_is_blamed_on_a_test(run_pytest):
    source = """
        import atexit, os

        def test_leaves_a_bomb():
            atexit.register(os._exit, 3)

        def test_stops():
            pass
    """
    run_pytest.write(
        "conftest.py",
        """
        def pytest_runtest_logfinish(nodeid, location):
            import pytest
            if nodeid.endswith("test_leaves_a_bomb"):
                pytest.exit("enough", 0)
        """,
    )
    outcome = run_pytest(source, "--rl-group=module")
    assert outcome.tests == {"test_leaves_a_bomb": "error"}
    assert "CRASH: ended itself with exit code 3 at exit" in outcome.messages["test_leaves_a_bomb"]

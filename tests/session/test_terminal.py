"""What a person sees of a verdict in the terminal, and that pytest's own flags still mean what they mean."""

from __future__ import annotations

import re

import pytest

from tests.conftest import Outcome, RunPytest

DIES = """
    import ctypes, threading, time

    def read(address):
        return ctypes.string_at(
            address,
        )

    def test_dies():
        threading.Thread(target=time.sleep, args=(60,), daemon=True, name="capture").start()
        read(0)
"""


@pytest.fixture
def dies(run_pytest: RunPytest) -> RunPytest:
    run_pytest.write("test_it.py", DIES)
    return run_pytest


def _body(outcome: Outcome) -> str:
    return re.split(r"_+ test_dies _+\n", outcome.text)[-1].partition("Reproduce: ")[0]


def test_a_failure_shows_short_paths_and_sources_and_versions_once(dies: RunPytest) -> None:
    outcome = dies.run("-v")
    assert re.search(r"^test_it.py::test_dies CRASH ", outcome.text, re.MULTILINE), outcome.text
    body = _body(outcome)
    assert body.startswith("CRASH: SIGSEGV in call\n  at test_it.py:5 in read, inside string_at (")
    stack = '    File "test_it.py", line 11, in test_dies\n      read(0)\n    File "test_it.py", line 5, in read\n'
    assert f"{stack}      return ctypes.string_at(address,)\n" in body
    assert "thread capture\n" in body
    assert str(dies.path) not in body
    assert "Platform" not in outcome.text
    assert outcome.text.count("rl-stability: Python 3.") == 1
    assert "FAILED test_it.py::test_dies - CRASH: SIGSEGV in call at test_it.py:5\n" in outcome.text
    assert outcome.messages["test_dies"] == "CRASH: SIGSEGV in call"
    assert "Platform: Python 3." in outcome.details["test_dies"], "a file is read without the run's closing lines"


def test_the_same_through_xdist(dies: RunPytest) -> None:
    outcome = dies.run("-v", "-n1")
    assert re.search(r"\] CRASH test_it.py::test_dies", outcome.text), outcome.text
    assert '    File "test_it.py", line 11, in test_dies\n      read(0)\n' in _body(outcome)
    assert "Platform: Python 3." in outcome.details["test_dies"]


def test_short_and_colour(dies: RunPytest) -> None:
    outcome = dies.run("--tb=short", "--color=yes")
    assert "\x1b[31m\x1b[1mCRASH: SIGSEGV in call\x1b[0m" in outcome.text
    assert "\x1b[1mPython stacks:\x1b[0m" in outcome.text
    assert "thread capture" not in outcome.text
    assert "Native stack" not in outcome.text
    assert "Native stack" in outcome.details["test_dies"]


@pytest.mark.parametrize(("style", "times"), [("line", 1), ("no", 0)])
def test_one_line_or_none(dies: RunPytest, style: str, times: int) -> None:
    outcome = dies.run(f"--tb={style}", "-q", "-rN")
    assert "Python stacks" not in outcome.text
    assert outcome.text.count("CRASH: SIGSEGV in call") == times


@pytest.mark.parametrize("filters", [[], ["-Wignore"], ["-Werror", "-p", "no:asyncio"]])
def test_undecided_is_not_shown_as_passed(run_pytest: RunPytest, filters: list[str]) -> None:
    outcome = run_pytest(
        """
        import time, pytest

        @pytest.mark.rl_no_leak
        def test_slow(rl_laps):
            for lap in rl_laps:
                time.sleep(0.3)

        @pytest.mark.rl_flaky(0.95, max_runs=2)
        def test_few():
            pass

        def test_fine():
            pass
        """,
        "-v",
        "--rl-leak-budget=1s",
        *filters,
    )
    assert set(outcome.tests.values()) == {"passed"}
    words = dict(re.findall(r"^test_it.py::(\w+) (\w+) ", outcome.text, re.MULTILINE))
    assert words == {"test_slow": "UNDECIDED", "test_few": "UNDECIDED", "test_fine": "PASSED"}
    assert "0 flaky tests, 2 undecided\n" in outcome.text


def test_a_deadlock_of_unknown_locks_says_what_would_show_them(run_pytest: RunPytest) -> None:
    source = """
        import threading

        def test_plain():
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()

        def test_tracked(rl_locks):
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
    """
    outcome = run_pytest(source, "--rl-stall-after=5s")
    assert outcome.messages["test_plain"].startswith("STALL: deadlock")
    assert "The fixture rl_locks would show" in outcome.details["test_plain"]
    assert "The fixture rl_locks would show" not in outcome.details["test_tracked"]


def test_two_leaks_of_one_test_have_two_signatures(run_pytest: RunPytest) -> None:
    outcome = run_pytest(
        """
        import pytest
        kept, other = [], []

        @pytest.mark.parametrize("which", [0, 1])
        @pytest.mark.rl_no_leak
        def test_it(rl_laps, which):
            for lap in rl_laps:
                if which:
                    kept.append([lap])
                else:
                    other.append([lap])
        """,
        "--rl-leak-budget=6s",
    )
    signatures = {outcome.properties[f"test_it[{which}]"]["rl_stability.signature"] for which in (0, 1)}
    assert len(signatures) == 2, signatures


NARROW = """
    import threading
    import pytest

    kept = []

    def step():
        kept.append(bytearray(2000))

    @pytest.mark.rl_no_leak
    def test_that_leaks(rl_laps):
        for lap in rl_laps:
            step()

    def test_probe_raises(rl_probe):
        rl_probe("food", lambda: {}["food"])

    @pytest.mark.rl_flaky(0.5)
    def test_steady():
        pass
"""


def test_eighty_columns_keep_the_place_and_our_frames_are_not_shown(
    run_pytest: RunPytest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = run_pytest(NARROW, "--rl-leak-budget=5s")
    (line,) = re.findall(r"^FAILED test_it.py::test_that_leaks.*$", outcome.text, re.MULTILINE)
    assert re.search(r" - LEAK: .*\.\.\. at test_it.py:8$", line), line
    assert len(line) <= 80
    assert 'rl_probe("food"' in outcome.text
    assert "probes.py" not in outcome.text.replace("pytest_rlstability.leaks.probes.ProbeError", "")
    kept = re.search(r"^rl-stability: rl_flaky kept: test_it.py::test_steady: (\d+) of \1 runs passed, promised 0.5$",
                     outcome.text, re.MULTILINE)  # fmt: skip
    assert kept, outcome.text


@pytest.mark.parametrize(
    ("arguments", "shown", "hidden"),
    [
        (["-q"], ["CRASH: SIGSEGV in call\n", "rl-stability: 1 test in 1 process"], ["rl-stability: on"]),
        (["-qq"], ["CRASH: SIGSEGV in call\n"], ["rl-stability: 1 test", "rl-stability: on"]),
        (["-vv"], ["test_it.py::test_dies CRASH"], []),
        (["--no-header"], ["CRASH: SIGSEGV in call\n"], ["rl-stability: on"]),
        (["--no-summary"], ["1 failed"], ["Python stacks"]),
        (["--tb=long"], ["Native stack"], []),
        (["--tb=native"], ["Native stack"], []),
        (["-rA"], ["FAILED test_it.py::test_dies - CRASH: SIGSEGV in call at test_it.py:5"], []),
        (["-p", "no:terminal"], [], ["Python stacks"]),
    ],
)
def test_flags_of_pytest_mean_what_they_mean(
    dies: RunPytest, arguments: list[str], shown: list[str], hidden: list[str]
) -> None:
    outcome = dies.run("--rl-native=auto", *arguments)
    assert outcome.code == 1, outcome.text
    assert outcome.tests == {"test_dies": "failed"}
    assert [text for text in shown if text not in outcome.text] == [], outcome.text
    assert [text for text in hidden if text in outcome.text] == [], outcome.text

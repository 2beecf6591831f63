"""What counts as progress, from made-up looks at threads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_rlstability.osinfo.threads import ThreadState, TreeState
from pytest_rlstability.verdicts.stall import Look, Standstill, classify, is_deadlock, telling_native

MAIN = ThreadState(10, 10, "python", "S", 5, 100, "futex", endless=True)
TICKER = ThreadState(10, 11, "python", "S", 0, 50, "clock_nanosleep")
CHILD = ThreadState(20, 20, "python", "S", 7, 70, "read", descriptor=3)
CALL = ("call", 1.0, 0)


def tree(*threads: ThreadState) -> TreeState:
    return TreeState(threads)


def look(*threads: ThreadState, gap: float = 0.5, **how: object) -> Look:
    return Look(gap, **{"mark": CALL, "tree": tree(*threads), "main": 10, **how})  # type: ignore[arg-type]


def test_nothing_moves() -> None:
    state = Standstill(after=3.0)
    for _ in range(7):
        state.note(look(MAIN))
    assert state.still == state.quiet == state.main_still == 3.0
    assert state.is_over


@pytest.mark.parametrize(
    "moving",
    [
        lambda n: replace(CHILD, switches=n),
        lambda n: replace(CHILD, ticks=n),
        lambda n: replace(CHILD, pid=100 + n, thread=100 + n),
        lambda n: replace(CHILD, state="R"),
        lambda n: replace(CHILD, state="D"),
    ],
    ids=["switches", "time", "processes come and go", "ready but not run", "waits for the disk"],
)
def test_activity_anywhere_is_progress(moving) -> None:
    state = Standstill(after=1.0)
    for number in range(40):
        state.note(look(MAIN, moving(number)))
        assert not state.is_over
    assert state.still == 0


def test_activity_is_not_progress_for_a_test_with_heartbeats() -> None:
    state = Standstill(after=3.0)
    for number in range(7):
        state.note(look(replace(MAIN, ticks=number), beating=True))
    assert state.is_over
    assert state.quiet == 0


def test_beats_and_phases_are_progress() -> None:
    state = Standstill(after=1.0)
    for number in range(40):
        state.note(look(MAIN, beating=True, mark=("call", 1.0, number)))
        assert not state.is_over


def test_a_starved_test_gets_more_time_but_not_for_ever() -> None:
    state = Standstill(after=3.0)
    state.note(look(MAIN, beating=True))
    for _ in range(11):
        state.note(look(MAIN, beating=True, starved=0.9))
    assert not state.is_over
    state.note(look(MAIN, beating=True, starved=0.9))
    assert state.is_over


def test_a_ticking_daemon_is_background_for_three_times_the_limit() -> None:
    state = Standstill(after=2.0)
    for number in range(12):
        state.note(look(MAIN, replace(TICKER, switches=number), background=frozenset({11})))
        assert not state.is_over
    state.note(look(MAIN, replace(TICKER, switches=99), background=frozenset({11})))
    assert state.is_over


@pytest.mark.parametrize(
    ("main", "daemons"),
    [(MAIN, frozenset()), (replace(MAIN, call="clock_nanosleep", endless=False), frozenset({11}))],
    ids=["not a daemon", "main thread sleeps"],
)
def test_other_ticking_threads_are_progress(main: ThreadState, daemons: frozenset[int]) -> None:
    state = Standstill(after=1.0)
    for number in range(40):
        state.note(look(main, replace(TICKER, switches=number), background=daemons))
        assert not state.is_over


def test_a_daemon_of_a_child_process_is_progress() -> None:
    state = Standstill(after=1.0)
    for number in range(40):
        state.note(look(MAIN, replace(CHILD, switches=number), background=frozenset({20})))
        assert not state.is_over


def test_only_locks_and_children_make_a_deadlock() -> None:
    waits = replace(MAIN, call="wait4")
    assert is_deadlock(tree(MAIN))
    assert is_deadlock(tree(waits, replace(MAIN, pid=20, thread=20)))
    assert not is_deadlock(tree(waits))
    assert not is_deadlock(tree(MAIN, TICKER))
    assert not is_deadlock(tree(MAIN, CHILD))
    assert not is_deadlock(tree(MAIN, replace(MAIN, thread=12, endless=False)))
    assert not is_deadlock(tree(MAIN, replace(MAIN, thread=12, call="?", endless=False)))
    assert not is_deadlock(tree(MAIN, replace(MAIN, thread=12, state="T")))


@pytest.mark.parametrize(
    ("threads", "active", "shared", "kind"),
    [
        ([MAIN], False, False, "deadlock"),
        ([MAIN], False, True, "blocked"),
        ([MAIN, CHILD], False, False, "blocked"),
        ([MAIN], True, False, "spinning"),
        ([MAIN, replace(CHILD, state="T")], True, False, "blocked"),
        ([replace(MAIN, state="?")], False, False, "unknown"),
        ([], False, False, "unknown"),
    ],
)
def test_classes(threads: list[ThreadState], active: bool, shared: bool, kind: str) -> None:
    assert classify(tree(*threads), active=active, shared=shared) == kind


WAITING = """\
thread 7 (python)
  __futex_abstimed_wait_common64 at x
  PyThread_acquire_lock_timed at y
  wait at threading.py:3 [Python]"""
MUTEX = """\
thread 8 (python)
  ___pthread_mutex_lock at z
  ffi_call at f
  step at env.py:4 [Python]"""


def test_native_frames_that_python_shows_already_are_left_out() -> None:
    assert telling_native(f"{WAITING}\n(by pystack)") == ""
    assert telling_native(f"{WAITING}\n{MUTEX}\n  test at t.py:9 [Python]\n(by pystack)") == f"{MUTEX}\n(by pystack)"
    assert telling_native("(off)") == ""
    assert telling_native("(none: pystack is not installed)") == "(none: pystack is not installed)"

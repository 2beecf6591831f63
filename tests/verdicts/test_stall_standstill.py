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
    assert state.still == state.quiet == state.main_still == state.frozen == 3.0
    assert state.is_over


def after_looks(state: Standstill, looks: int, make) -> float:
    """How many seconds it takes until *state* is over, at most so many looks."""
    seconds = 0.0
    for number in range(looks):
        one = make(number)
        state.note(one)
        seconds += one.gap
        if state.is_over:
            return seconds
    return float("inf")


@pytest.mark.parametrize(
    "moving",
    [
        lambda n: look(MAIN, busy=True, cpu=0.5),
        lambda n: look(MAIN, CHILD, busy=n % 20 == 0, cpu=0.03),
        lambda n: look(MAIN, replace(CHILD, pid=100 + n, thread=100 + n)),
        lambda n: look(MAIN, replace(CHILD, state="R")),
        lambda n: look(MAIN, replace(CHILD, state="D")),
    ],
    ids=["computes", "computes now and then", "processes come and go", "ready but not run", "waits for the disk"],
)
def test_work_anywhere_is_progress(moving) -> None:
    state = Standstill(after=12.0)
    for number in range(100):
        state.note(moving(number))
        assert not state.is_over


@pytest.mark.parametrize(
    "moving",
    [
        lambda n: look(MAIN, replace(TICKER, switches=n)),
        lambda n: look(MAIN, replace(CHILD, switches=n)),
        lambda n: look(MAIN, replace(CHILD, ticks=n // 10)),
        lambda n: look(replace(MAIN, endless=False, switches=n)),
        lambda n: look(replace(MAIN, endless=False, switches=n // 10)),
    ],
    ids=["a thread ticks", "a child ticks", "a child uses hardly any time", "main polls", "main polls slowly"],
)
def test_ticking_is_standstill_for_three_times_the_limit(moving) -> None:
    assert 2.5 * 6.0 <= after_looks(Standstill(after=6.0), 100, moving) <= 3.2 * 6.0


def test_ticking_does_not_help_a_test_that_only_another_process_can_wake() -> None:
    state = Standstill(after=6.0)
    assert after_looks(state, 100, lambda n: look(MAIN, replace(TICKER, switches=n), outside=True)) <= 7.0


def sleeper(number: int, until: float, thread: ThreadState = MAIN, call: str = "clock_nanosleep") -> ThreadState:
    return replace(thread, call=call, endless=False, switches=number, until=until)


def at(number: int, *threads: ThreadState) -> Look:
    """The look that comes *number* half seconds after the first."""
    return look(*threads, now=number / 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: at(n, sleeper(0, 45.0)),
        lambda n: at(n, sleeper(n // 20, n // 20 * 10.0 + 10.0)),
        lambda n: at(n, sleeper(0, 45.0, call="futex")),
        lambda n: at(n, replace(MAIN, call="wait4"), sleeper(0, 45.0, CHILD)),
        lambda n: at(n, CHILD and replace(MAIN, call="read", endless=False), sleeper(0, 45.0, CHILD)),
        lambda n: at(n, MAIN, sleeper(0, 45.0, TICKER)),
        lambda n: at(n, replace(MAIN, call="epoll_wait"), sleeper(0, 45.0, TICKER)),
        lambda n: at(n, replace(MAIN, futex=1), sleeper(0, 45.0, CHILD)),
        lambda n: at(n, MAIN, replace(TICKER, call="read", endless=False), sleeper(0, 45.0, CHILD)),
    ],
    ids=[
        "sleep",
        "one sleep after the other",
        "lock with a timeout",
        "child that sleeps",
        "pipe of a child that sleeps",
        "thread that sleeps",
        "event loop beside a thread that sleeps",
        "lock that a child shares",
        "thread that waits for a child",
    ],
)
def test_a_long_wait_with_its_end_in_sight_is_not_a_standstill(make) -> None:
    assert after_looks(Standstill(after=6.0), 90, make) == float("inf")


@pytest.mark.parametrize(
    ("make", "within"),
    [
        (lambda n: at(n, sleeper(0, 10**6)), 20.0),
        (lambda n: at(n, MAIN, sleeper(0, 1000.0, CHILD)), 7.0),
        (lambda n: at(n, sleeper(n // 10, n // 10 * 5.0 + 5.0, call="futex")), 45.0),
        (lambda n: at(n, sleeper(0, 10.0)), 10.0 + 3 * 6.0 + 1.0),
        (lambda n: at(n, MAIN, sleeper(n // 20, n // 20 * 10.0 + 10.0, TICKER)), 10.0 + 3 * 6.0 + 1.0),
        (lambda n: replace(at(n, MAIN, sleeper(0, 100.0, TICKER)), daemons={TICKER.thread}), 7.0),
        (lambda n: at(n, MAIN, sleeper(0, 200.0, TICKER)), 7.0),
    ],
    ids=[
        "far away",
        "a child's sleep opens no lock",
        "a loop of timed waits",
        "it is over",
        "a thread that sleeps again and again",
        "a daemon's housekeeping",
        "a thread that sleeps for long",
    ],
)
def test_an_end_that_helps_nobody_is_a_standstill(make, within) -> None:
    assert after_looks(Standstill(after=6.0), 200, make) <= within


def test_threads_that_stay_on_their_lines_spin() -> None:
    state = Standstill(after=6.0)
    assert after_looks(state, 200, lambda n: look(busy=True, cpu=4.0)) == 30.5  # the first look sees the phase begin
    assert state.spins
    state.moved_on()
    assert not state.is_over


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

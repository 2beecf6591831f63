"""A look at threads, completed by the stacks that their process has written."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlstability.model.progress_counters import ProcessCounters
from pytest_rlstability.osinfo.threads import ThreadState, TreeState
from pytest_rlstability.session import stack_waits
from pytest_rlstability.session.stack_waits import StackWaits

PID, MAIN, OTHER = 50, 60, 61
SOURCE = """
lock.acquire()
work()
"""


class Watched:
    """A process whose threads, and the stacks that it writes, are made up."""

    def __init__(self, directory: Path) -> None:
        self._source = directory / "user_code.py"
        self._source.write_text(SOURCE)
        self._waits = StackWaits()
        self.counters = ProcessCounters.of_nobody()
        self.process: Any = SimpleNamespace(
            pid=PID,
            main=MAIN,
            stacks=directory / "stacks",
            counters=self.counters,
            natives={0xA: MAIN, 0xB: OTHER},
            lock_waits={},
        )

    def writes(self, main: int, other: int) -> None:
        """The stacks, with the main thread and another at these lines."""
        threads = [
            f'Thread 0x{ident:x} (most recent call first):\n  File "{self._source}", line {line} in f\n'
            for ident, line in ((0xB, other), (0xA, main))
        ]
        with self.process.stacks.open("a") as file:
            file.write("Timeout (0:00:01)!\n" + "\n".join(threads))

    def seen(self, *ticks: int) -> dict[int, ThreadState]:
        """A look at threads that have used so much processor time; with one number, at the process."""
        numbers = (PID,) if len(ticks) == 1 else (MAIN, OTHER, *range(OTHER + 1, OTHER + 10))
        states = [
            ThreadState(PID, number, "python", "?", used, 0) for number, used in zip(numbers, ticks, strict=False)
        ]
        tree = self._waits.add_to(TreeState(tuple(states)), self.process)
        return {state.thread: state for state in tree.threads}


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(stack_waits, "NEEDED", True)
    return Watched(tmp_path)


def test_threads_that_have_not_run_since_are_where_the_stacks_show_them(watched: Watched) -> None:
    watched.seen(5, 5, 0)
    watched.writes(main=2, other=2)
    states = watched.seen(5, 5, 0)
    assert [(one.state, one.call, one.endless) for one in states.values()] == 2 * [("S", "futex", True)]


def test_a_thread_that_has_run_since_may_be_anywhere(watched: Watched) -> None:
    watched.seen(5, 5, 0)
    watched.writes(main=2, other=2)
    watched.seen(5, 5, 0)
    states = watched.seen(5, 6, 0)
    assert (states[MAIN].state, states[OTHER].state) == ("S", "?")


def test_a_thread_that_ran_while_the_stacks_were_written_may_be_anywhere(watched: Watched) -> None:
    watched.seen(5, 5, 0)
    watched.writes(main=2, other=2)
    assert watched.seen(5, 6, 0)[OTHER].state == "?"


def test_a_thread_that_is_not_pythons_leaves_it_open_who_wakes_the_others(watched: Watched) -> None:
    watched.seen(5, 5, 0, 0, 0)
    watched.writes(main=2, other=2)
    assert watched.seen(5, 5, 0, 0, 0)[0].state == "?"


def test_where_only_the_process_is_seen_its_stacks_cost_it_some_time(watched: Watched) -> None:
    watched.seen(5)
    watched.writes(main=2, other=3)
    states = watched.seen(6)
    assert {number: (one.state, one.call, one.ticks) for number, one in states.items()} == {
        MAIN: ("S", "futex", 5),
        OTHER: ("S", "?", 5),
    }


def test_a_process_that_computes_is_not_asleep(watched: Watched) -> None:
    watched.seen(5)
    watched.writes(main=2, other=3)
    watched.seen(6)
    assert {one.state for one in watched.seen(50).values()} == {"?"}


def test_a_sleep_of_the_main_thread_has_an_end(watched: Watched) -> None:
    watched.seen(5, 5, 0)
    watched.writes(main=3, other=2)
    watched.counters.begin_sleep(600, main=True)
    main = watched.seen(5, 5, 0)[MAIN]
    assert main.call == "clock_nanosleep"
    assert main.until is not None
    assert main.until > time.monotonic() + 500


def test_the_next_sleep_is_a_move(watched: Watched) -> None:
    watched.seen(5, 5, 0)
    watched.writes(main=3, other=2)
    watched.counters.begin_sleep(0.001, main=True)
    before = watched.seen(5, 5, 0)[MAIN].mark
    watched.counters.begin_sleep(0.002, main=True)
    assert watched.seen(5, 5, 0)[MAIN].mark != before

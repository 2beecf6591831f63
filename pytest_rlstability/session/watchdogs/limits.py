"""Ends a test over its timeout or its memory cap, and notices crashes that only its output shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pytest_rlstability.child.output import read_output
from pytest_rlstability.model.run import Killed
from pytest_rlstability.model.stack_dump import FATAL_WORDS
from pytest_rlstability.model.units import format_duration, format_size
from pytest_rlstability.model.verdict import StallClass
from pytest_rlstability.osinfo.fatal_signals import signal_name
from pytest_rlstability.osinfo.memory import resident_memory
from pytest_rlstability.osinfo.threads import held_signal, look_at_tree
from pytest_rlstability.session.test_process import TestProcess
from pytest_rlstability.session.watchdogs.stall import evidence


class HardLimit:
    """A time limit enforced from outside: it also ends a test that holds the GIL in native code.

    Where pytest-timeout itself can act, it gets *grace* seconds to do so first: its failure shows a line. With a
    *phase*, only the time in that phase counts. The start of a fresh interpreter, which imports the test's module
    again, does not count unless it takes very long.
    """

    _START = 60.0
    _LOOK = 0.5

    def __init__(self, name: str, limit: float, directory: Path, grace: float = 0.0, *, phase: str = "") -> None:
        self._name = name
        self._limit = limit
        self._directory = directory
        self._grace = grace
        self._phase = phase
        self._started = time.monotonic()
        self._start_ends = self._started + self._START
        self.due = self._started + min(limit + grace, self._LOOK)

    def check(self, process: TestProcess) -> Killed | None:
        now = time.monotonic()
        if process.first_order is not None and process.counters.phase == "start" and now < self._start_ends:
            self._started = now
            self.due = now + self._LOOK
            return None
        spent = now - self._started
        if self._phase:
            spent = process.counters.phase_seconds if process.counters.phase == self._phase else 0.0
        if spent < self._limit + self._grace:
            self.due = time.monotonic() + max(0.05, self._limit + self._grace - spent)
            return None
        gather = watch_briefly(process, self._directory)
        return Killed("timeout", f"over its {self._name} of {format_duration(self._limit)}", self._limit, gather)


def watch_briefly(process: TestProcess, directory: Path) -> Callable[[], dict[str, object]]:
    """See whether a process moves. What is returned gathers the evidence: it is slow as long as it moves at all."""
    before = look_at_tree(process.pid).activity
    time.sleep(0.3)
    now = look_at_tree(process.pid)
    active = now.activity != before
    tree = process.stack_waits.add_to(now, process)

    def gather() -> dict[str, object]:
        facts = evidence(process, tree, directory, active=active)
        return {**facts, "class": StallClass.SLOW} if active else facts

    return gather


class HeldCrash:
    """Notices a crash without a dump: Python turns faulthandler off before it aborts with its own *Fatal Python error*.
    Its stacks are in the test's output."""

    INTERVAL = 0.5
    COST_SHARE = 0.0005

    def __init__(self) -> None:
        self.due = time.monotonic() + self.INTERVAL

    def observe(self, process: TestProcess) -> None:
        began = time.thread_time()
        held = None if process.crash_dump else held_signal(process.pid)
        if held is not None:
            words = FATAL_WORDS.get(signal_name(held), "Aborted")
            stacks = read_output(process.stderr).rpartition("Fatal Python error:")[2].partition("\n")[2]
            process.crash_dump += f"Fatal Python error: {words}\n{stacks}".encode()
        spent = time.thread_time() - began
        self.due = time.monotonic() + max(self.INTERVAL, spent / self.COST_SHARE)


class MemoryCap:
    """Sums the resident memory of a test's process tree. It looks often: a cap is rare, and asked for."""

    INTERVAL = 0.05

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.due = time.monotonic() + self.INTERVAL

    def check(self, process: TestProcess) -> Killed | None:
        self.due = time.monotonic() + self.INTERVAL
        used = resident_memory(process.pid)
        if used <= self._limit:
            return None
        detail = f"{format_size(used)} used, the limit is {format_size(self._limit)}"
        return Killed("memory", detail, self._limit)

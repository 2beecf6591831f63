"""Reasons to end a test from outside, one small watch each."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Protocol

from pytest_rlstability.evidence.processes import held_signal, look_at_tree
from pytest_rlstability.evidence.stacks import FATAL_WORDS
from pytest_rlstability.facts import Killed
from pytest_rlstability.isolation.hub import TestProcess
from pytest_rlstability.isolation.kernel import read_small, signal_name
from pytest_rlstability.isolation.output import read_output
from pytest_rlstability.isolation.stall_watch import evidence
from pytest_rlstability.units import format_duration, format_size


class Watch(Protocol):
    """Looked at when ``due`` (a ``time.monotonic`` instant) has come; says so when the test has to end."""

    due: float

    def look(self, process: TestProcess) -> Killed | None:
        """Look once, set ``due`` anew, and say why the test has to end, if it has to."""


class HardLimit:
    """pytest-timeout's limit, kept from outside: it ends what holds the GIL in native code as well.

    Where pytest-timeout itself can act, it gets *grace* seconds to do so first: its failure shows a line.
    """

    def __init__(self, limit: float, grace: float, directory: Path, *, call_only: bool) -> None:
        self._limit = limit
        self._directory = directory
        self._grace = grace
        self._call_only = call_only
        self._started = time.monotonic()
        self.due = self._started + limit + grace

    def look(self, process: TestProcess) -> Killed | None:
        spent = time.monotonic() - self._started
        if self._call_only:
            in_call = process.slot.phase == "call"
            spent = time.time() - process.slot.phase_start if in_call else 0.0
        if spent < self._limit + self._grace:
            self.due = time.monotonic() + max(0.05, self._limit + self._grace - spent)
            return None
        before = look_at_tree(process.pid).activity
        time.sleep(0.3)
        tree = look_at_tree(process.pid)
        active = tree.activity != before

        def gather() -> dict[str, object]:
            """What it does when nothing else has called it a standstill: slow, as long as it moves at all."""
            facts = evidence(process, tree, self._directory, active=active)
            return {**facts, "class": "slow"} if active else facts

        return Killed("timeout", f"over its timeout of {format_duration(self._limit)}", self._limit, gather)


class HeldCrash:
    """A crash that nobody was told of: Python turns faulthandler off before it aborts with a *Fatal Python error* of
    its own, whose stacks are among what the test has written."""

    INTERVAL = 0.5
    COST_SHARE = 0.0005

    def __init__(self) -> None:
        self.due = time.monotonic() + self.INTERVAL

    def look(self, process: TestProcess) -> Killed | None:
        began = time.thread_time()
        held = None if process.fault else held_signal(process.pid)
        if held is not None:
            words = FATAL_WORDS.get(signal_name(held), "Aborted")
            stacks = read_output(process.stderr).rpartition("Fatal Python error:")[2].partition("\n")[2]
            process.fault += f"Fatal Python error: {words}\n{stacks}".encode()
        spent = time.thread_time() - began
        self.due = time.monotonic() + max(self.INTERVAL, spent / self.COST_SHARE)
        return None


class MemoryCap:
    """The sum of the resident memory of a test's process tree, looked at often: a cap is rare and asked for."""

    INTERVAL = 0.05

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.due = time.monotonic() + self.INTERVAL

    def look(self, process: TestProcess) -> Killed | None:
        self.due = time.monotonic() + self.INTERVAL
        used = resident_memory(process.pid)
        if used <= self._limit:
            return None
        detail = f"{format_size(used)} used, the limit is {format_size(self._limit)}"
        return Killed("memory", detail, self._limit)


def resident_memory(pid: int) -> int:
    """Resident memory of a process and its descendants in bytes, files left out; memory that they share counts once."""
    from pytest_rlstability.isolation.kernel import descendants_of

    parts = [_own_and_shared(member) for member in (pid, *descendants_of(pid))]
    return sum(own for own, _ in parts) + max(shared for _, shared in parts)


def _own_and_shared(pid: int) -> tuple[int, int]:
    try:
        status = read_small(f"/proc/{pid}/status")
    except OSError:
        return (0, 0) if sys.platform == "linux" else (_resident_by_psutil(pid), 0)
    own, shared = (
        int((status.partition(name)[2].split(maxsplit=1) or [b"0"])[0]) for name in (b"RssAnon:", b"RssShmem:")
    )
    return own * 1024, shared * 1024


def _resident_by_psutil(pid: int) -> int:
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0

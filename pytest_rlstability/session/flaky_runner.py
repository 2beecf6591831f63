"""Runs one test again and again, several at once, each in a fresh process."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path

from pytest_rlstability.facts import Run
from pytest_rlstability.isolation.hub import TestProcess
from pytest_rlstability.isolation.nursery import BIRTH_LIMIT, Nursery, NurseryError
from pytest_rlstability.isolation.protocol import Demand
from pytest_rlstability.isolation.supervisor import Job, Supervisor

_MOST_AT_ONCE = 32
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class Repeater:
    """Hands over runs in the order of their numbers, whichever ends first: a run that fails fast must not be counted
    before one that passes slowly.

    *demand* says what the process for a seed needs, *start* gives a process its job.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        nursery: Nursery,
        demand: Callable[[int], Demand],
        start: Callable[[TestProcess, int], Job],
        *,
        seed: int,
        at_once: int,
    ) -> None:
        self._supervisor = supervisor
        self._nursery = nursery
        self._demand = demand
        self._start = start
        self._seed = seed
        self._at_once = at_once
        self._ordered = 0
        self._coming: dict[int, tuple[TestProcess, float]] = {}
        self._running: dict[int, Job] = {}
        self._over: dict[int, Run] = {}

    def runs(self, wanted: Callable[[], int]) -> Generator[Run]:
        """Runs without end, of which *wanted()* are worth starting by now; those still going when the caller has
        heard enough are ended. The first goes alone: it may say that the test does not want to be run here."""
        number = 1
        try:
            while True:
                self._order(wanted(), 1 if number == 1 else self._at_once)
                while number not in self._over:
                    self._advance()
                    self._order(wanted(), 1 if number == 1 else self._at_once)
                yield self._over.pop(number)
                number += 1
        except KeyboardInterrupt:
            self._supervisor.interrupt(list(self._running.values()))
            raise
        finally:
            self._abandon()

    def _order(self, wanted: int, at_once: int) -> None:
        while self._ordered < wanted and len(self._coming) + len(self._running) < at_once:
            self._ordered += 1
            process = self._nursery.request(self._demand(seed_of(self._seed, self._ordered)))
            self._coming[self._ordered] = (process, time.monotonic() + BIRTH_LIMIT)

    def _advance(self) -> None:
        """Start what is ready, take in what is over; wait when there is neither."""
        moved = self._start_ready()
        for number, job in list(self._running.items()):
            if self._supervisor.is_over(job):
                del self._running[number]
                self._over[number] = job.run
                self._nursery.bury(job.process)
                moved = True
        if not moved:
            self._supervisor.wait_for_news(list(self._running.values()), BIRTH_LIMIT)

    def _start_ready(self) -> bool:
        started = False
        for number, (process, deadline) in list(self._coming.items()):
            if process.ready or process.exit is not None:
                del self._coming[number]
                self._running[number] = self._start(process, seed_of(self._seed, number))
                started = True
            elif time.monotonic() > deadline:
                raise NurseryError(f"the {self._nursery.backend.name} backend gave no process in {BIRTH_LIMIT:.0f} s")
        return started

    def _abandon(self) -> None:
        jobs = list(self._running.values())
        unborn = [process for process, _ in self._coming.values()]
        for process in unborn:
            self._nursery.end(process)
        self._supervisor.end(jobs)
        for process in (*unborn, *(job.process for job in jobs)):
            self._nursery.bury(process)
        self._running.clear()
        self._coming.clear()


def seed_of(seed: int, number: int) -> int:
    """The seed of run *number* (from 1). The first is the given one, so that any run's seed, given as ``--rl-seed``,
    is run again first.

    >>> seed_of(7, 1), seed_of(7, 2) == seed_of(7, 2), seed_of(7, 2) != seed_of(7, 3)
    (7, True, True)
    """
    if number == 1:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4], "big") >> 1


def free_cores() -> int:
    """How many tests this process may run at once: its share of the cores it is allowed to use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT") or 1)
    return max(1, min(_MOST_AT_ONCE, min(allowed, _quota()) // workers))


def _quota() -> int:
    """Whole cores that a container's limit leaves, 1 at least; a large number without a limit."""
    try:
        quota, period = _QUOTA.read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return 1 << 16

"""Runs one test many times, several at once, each in a fresh process."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Generator

from pytest_rlstability.model.run import Run
from pytest_rlstability.osinfo.limits import usable_processors
from pytest_rlstability.session.backends.interface import ProcessSpec
from pytest_rlstability.session.process_pool import START_LIMIT, NoProcessError, ProcessPool
from pytest_rlstability.session.supervisor import ActiveRun, Supervisor
from pytest_rlstability.session.test_process import TestProcess

_MOST_AT_ONCE = 32


class FlakyRunner:
    """Hands over runs in the order of their numbers, whichever ends first: a run that fails fast must not count before
    one that passes slowly.

    *spec* says what the process for a seed has to be like, *start* gives a process its test.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        pool: ProcessPool,
        spec: Callable[[int], ProcessSpec],
        start: Callable[[TestProcess, int], ActiveRun],
        *,
        seed: int,
        at_once: int,
    ) -> None:
        self._supervisor = supervisor
        self._pool = pool
        self._spec = spec
        self._start = start
        self._seed = seed
        self._at_once = at_once
        self._requested = 0
        self._starting: dict[int, tuple[TestProcess, float]] = {}
        self._running: dict[int, ActiveRun] = {}
        self._over: dict[int, Run] = {}

    def runs(self, wanted: Callable[[], int]) -> Generator[Run]:
        """Runs without end, of which *wanted()* are worth starting by now. Those still going when the caller has
        enough are killed. The first goes alone: it may say that the test is not to be run here."""
        number = 1
        try:
            while True:
                self._request(wanted(), 1 if number == 1 else self._at_once)
                while number not in self._over:
                    self._advance()
                    self._request(wanted(), 1 if number == 1 else self._at_once)
                yield self._over.pop(number)
                number += 1
        except KeyboardInterrupt:
            self._supervisor.interrupt(list(self._running.values()))
            raise
        finally:
            self._kill_rest()

    def _request(self, wanted: int, at_once: int) -> None:
        while self._requested < wanted and len(self._starting) + len(self._running) < at_once:
            self._requested += 1
            process = self._pool.request(self._spec(seed_of(self._seed, self._requested)))
            self._starting[self._requested] = (process, time.monotonic() + START_LIMIT)

    def _advance(self) -> None:
        """Start what is ready, take in what is over; wait when there is neither."""
        moved = self._start_ready()
        for number, active in list(self._running.items()):
            if self._supervisor.is_over(active):
                del self._running[number]
                self._over[number] = active.run
                self._pool.release(active.process)
                moved = True
        if not moved:
            self._supervisor.wait_for_news(list(self._running.values()), START_LIMIT)

    def _start_ready(self) -> bool:
        started = False
        for number, (process, deadline) in list(self._starting.items()):
            if process.ready or process.exit is not None:
                del self._starting[number]
                self._running[number] = self._start(process, seed_of(self._seed, number))
                started = True
            elif time.monotonic() > deadline:
                name = self._pool.backend.name
                raise NoProcessError(f"the {name} backend started no process within {START_LIMIT:.0f} s")
        return started

    def _kill_rest(self) -> None:
        runs = list(self._running.values())
        starting = [process for process, _ in self._starting.values()]
        for process in starting:
            self._pool.end(process)
        self._supervisor.end(runs)
        for process in (*starting, *(active.process for active in runs)):
            self._pool.release(process)
        self._running.clear()
        self._starting.clear()


def seed_of(seed: int, number: int) -> int:
    """The seed of run *number* (from 1). The first is the given one, so that any run's seed, given as ``--rl-seed``,
    is run first.

    >>> seed_of(7, 1), seed_of(7, 2) == seed_of(7, 2), seed_of(7, 2) != seed_of(7, 3)
    (7, True, True)
    """
    if number == 1:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4], "big") >> 1


def free_cores() -> int:
    """How many tests this process may run at once: its share of the cores it is allowed to use."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT") or 1)
    return max(1, min(_MOST_AT_ONCE, usable_processors() // workers))

"""Watches tests in their processes from the first order to the end, and gathers what is known of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from pytest_rlstability.child.output import read_output
from pytest_rlstability.model.messages import Sampled
from pytest_rlstability.model.run import Exit, Killed, Run
from pytest_rlstability.model.thinning import Thinning
from pytest_rlstability.osinfo.descriptors import remove_directories, socket_directories
from pytest_rlstability.osinfo.fatal_signals import POSITION_SIGNAL, STACKS_SIGNAL, signal_thread
from pytest_rlstability.osinfo.linux import kernel_kills
from pytest_rlstability.osinfo.native_stacks import native_stack
from pytest_rlstability.osinfo.processes import members_of
from pytest_rlstability.session.connections import Connections, TestProcess
from pytest_rlstability.session.process_pool import ProcessPool
from pytest_rlstability.session.watchdogs import KillCondition, Observer

_SHORT_TEST = 0.02
"""Seconds that a test has to end by itself before its messages are read as they come."""
_QUIET = 0.1
"""Seconds without a further byte after which a dump is complete."""
_FIRST_BYTE = 2.0
_SAMPLE_LIMIT = 0.5
_MOST_SAMPLED = 4
_END_LIMIT = 10.0
_PARENT_LOOK = 5.0
"""Seconds from one look at the parent process to the next. Most tests are over before the first."""
_INTERRUPT_GRACE = 3.0


@dataclass
class ActiveRun:
    """One test that a process has been told to run, and what may end it from outside."""

    item: pytest.Item
    pool: ProcessPool
    process: TestProcess
    run: Run
    earlier: dict[pytest.Item, Sequence[str]] = field(default_factory=dict)
    """The tests that ran before it in the same process, and what each of them left there."""
    kill_conditions: Sequence[KillCondition] = ()
    observers: Sequence[Observer] = ()
    thinning: Thinning = field(default_factory=Thinning)


class Supervisor:
    """Watches over runs. ``on_sample`` gets every sample as it arrives."""

    def __init__(
        self,
        connections: Connections,
        native: str,
        on_sample: Callable[[ActiveRun, Sampled], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._native = native
        self._on_sample = on_sample
        self._kernel_kills = kernel_kills()

    def supervise(self, active: ActiveRun) -> None:
        """Wait for the end of one run, and fill it in."""
        process = active.process
        try:
            if not active.run.spec.stays:
                self._connections.wait_until(lambda: process.exit is not None or bool(process.crash_dump), _SHORT_TEST)
            looked = self._clock()
            while not self.is_over(active):
                self.wait_for_news([active], at_most=_PARENT_LOOK)
                if self._clock() - looked >= _PARENT_LOOK:
                    looked = self._clock()
                    active.pool.wake_parent()
        except (KeyboardInterrupt, pytest.exit.Exception):
            self.interrupt([active])
            raise

    def is_over(self, active: ActiveRun) -> bool:
        """Look at a run, and end it if it has to be ended; once it is over, its ending is filled in."""
        if not self._has_ended(active):
            return False
        process, run, ending = active.process, active.run, active.run.ending
        ending.time = time.time()
        ending.thread_names = process.thread_names
        # A test that was killed may still have said that it is done: our own signals can wake it up.
        if process.exit is not None and (ending.killed is not None or not _process_stays(run)):
            ending.exit = process.exit
            ending.killed_by_kernel = self._killed_by_kernel(process.exit)
            ending.left_before = [f"{item.nodeid}: {line}" for item, lines in active.earlier.items() for line in lines]
            ending.dump = ending.dump or process.crash_dump.decode(errors="replace")
            if not run.completed_cleanly:
                ending.stdout, ending.stderr = read_output(process.stdout), read_output(process.stderr)
        return True

    def wait_for_news(self, runs: Sequence[ActiveRun], at_most: float = 3600.0) -> None:
        """Wait until something arrives from any process, or one of the watchdogs is due."""
        now = self._clock()
        due = [condition.due for active in runs for condition in active.kill_conditions]
        due += [observer.due for active in runs for observer in active.observers]
        self._connections.pump(min(min(due, default=now + at_most) - now, at_most))

    def interrupt(self, runs: Sequence[ActiveRun]) -> None:
        """Ctrl-C reaches the tests too; one that does not end is killed."""
        for active in runs:
            with suppress(ProcessLookupError):
                os.kill(active.process.pid, signal.SIGINT)
        self._wait_for_exits(runs)
        self.end(runs)

    def end(self, runs: Sequence[ActiveRun]) -> None:
        """Kill the processes of *runs*."""
        for active in runs:
            active.pool.end(active.process)
        self._wait_for_exits(runs)

    def _wait_for_exits(self, runs: Sequence[ActiveRun]) -> None:
        self._connections.wait_until(lambda: all(active.process.exit is not None for active in runs), _INTERRUPT_GRACE)

    def _has_ended(self, active: ActiveRun) -> bool:
        if self._is_done(active):
            return True
        now = self._clock()
        conditions = [condition for condition in active.kill_conditions if condition.due <= now]
        observers = [observer for observer in active.observers if observer.due <= now]
        if conditions or observers:
            self._connections.pump(0)  # this process may have been slow itself: read what the test has sent first
            if self._is_done(active):
                return True
        for observer in observers:
            observer.observe(active.process)
        if observers and self._is_done(active):  # one of them may have found a crash
            return True
        for condition in conditions:
            if (killed := condition.check(active.process)) is not None:
                self._kill(active, killed)
                return True
        return False

    def _is_done(self, active: ActiveRun) -> bool:
        """Whether the test has come to an end, by all that has arrived from it."""
        process, run = active.process, active.run
        self._take_in(active)
        if process.exit is not None or _process_stays(run):
            return True
        self._connections.listen_to(process)
        if process.crash_dump:
            self._handle_crash(active)
        return bool(process.crash_dump)

    def _take_in(self, active: ActiveRun) -> None:
        counters, run = active.process.counters, active.run
        if run.ending.killed is None:  # later, our signals may have woken it up
            run.seen.phase, run.seen.lap = counters.phase, counters.laps
            run.seen.phase_start = time.time() - counters.phase_seconds if counters.phase_entered else 0.0
        for message in active.process.take_messages(one_test=run.spec.stays):
            run.seen.handle(message)
            if isinstance(message, Sampled):
                self._on_sample(active, message)

    def _handle_crash(self, active: ActiveRun) -> None:
        """The process has dumped its stacks. It is held where it crashed, or about to die."""
        process, ending = active.process, active.run.ending
        self._read_dump(process)
        ending.dump = process.crash_dump.decode(errors="replace")
        if process.exit is None:
            ending.native_stack = native_stack(process.pid, self._native)
        self._end_process(active)

    def _kill(self, active: ActiveRun, killed: Killed) -> None:
        """Kill a live test, after its stacks were read."""
        process, ending = active.process, active.run.ending
        ending.killed = killed
        if STACKS_SIGNAL is not None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, STACKS_SIGNAL)
            self._read_dump(process)
        ending.dump = process.crash_dump.decode(errors="replace")
        ending.killed = replace(killed, facts=killed.gather())
        if killed.reason != "memory":
            ending.native_stack = native_stack(process.pid, self._native)
        self._end_process(active)

    def sample(self, process: TestProcess, threads: Collection[int]) -> str:
        """The Python stacks of some threads of a test that goes on; a thread that is not Python's has none."""
        stacks = ""
        for thread in sorted(threads)[:_MOST_SAMPLED]:
            if POSITION_SIGNAL is None or process.crash_dump or not signal_thread(process.pid, thread, POSITION_SIGNAL):
                break
            self._read_dump(process, _SAMPLE_LIMIT)
            if b"Fatal Python error" in process.crash_dump:
                break  # it crashed at this very moment
            stacks += f"{thread}: {process.crash_dump.decode(errors='replace')}"
            process.crash_dump.clear()
        return stacks

    def _read_dump(self, process: TestProcess, wait: float = _FIRST_BYTE) -> None:
        """Read until the process writes no more."""
        size = 0
        while process.exit is None:
            if not self._connections.wait_until(
                lambda: process.exit is not None or len(process.crash_dump) > size,  # noqa: B023
                wait,
            ):
                return
            wait, size = _QUIET, len(process.crash_dump)

    def _end_process(self, active: ActiveRun) -> None:
        process = active.process
        left = socket_directories(members_of(process.pid, self._connections.pids()))
        active.pool.end(process)
        if not self._connections.wait_until(lambda: process.exit is not None, _END_LIMIT):
            process.exit = Exit(None)
        remove_directories(left)
        self._take_in(active)

    def _killed_by_kernel(self, exit: Exit) -> bool:
        """Whether a SIGKILL came from the out-of-memory killer: only the kernel counts those."""
        if exit.status != -9:
            return False
        before, self._kernel_kills = self._kernel_kills, kernel_kills()
        return self._kernel_kills > before


def _process_stays(run: Run) -> bool:
    """Whether this test is over, and what its process does now belongs to another test."""
    return run.spec.stays and run.seen.done is not None and run.seen.done.stays

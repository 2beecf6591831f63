"""Watches tests in their processes from the first order to the end, and gathers what is known of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import pytest

from pytest_rlstability.child.output import read_output
from pytest_rlstability.model.messages import Sampled, StallDescribed
from pytest_rlstability.model.run import Exit, Killed, Run
from pytest_rlstability.model.thinning import Thinning
from pytest_rlstability.osinfo.descriptors import remove_directories, socket_directories
from pytest_rlstability.osinfo.fatal_signals import DESCRIBE_SIGNAL, POSITION_SIGNAL, STACKS_SIGNAL, signal_thread
from pytest_rlstability.osinfo.linux import kernel_kills
from pytest_rlstability.osinfo.native_stacks import native_stack
from pytest_rlstability.osinfo.process_control import INTERRUPT, send_signal
from pytest_rlstability.osinfo.processes import members_of
from pytest_rlstability.osinfo.threads import catches_signal
from pytest_rlstability.osinfo.timed_stacks import last_stacks, stacks_by_thread
from pytest_rlstability.session.connections import ProcessLinks
from pytest_rlstability.session.process_pool import ProcessPool
from pytest_rlstability.session.test_process import TestProcess
from pytest_rlstability.session.watchdogs import KillCondition, Observer

_SHORT_TEST = 0.02
"""Seconds that a test has to end by itself before its messages are read as they come."""
_SHORT_TESTS = 0.005
"""The same for tests that follow each other in one process: all that end within it are read at once."""
_QUIET = 0.1
"""Seconds without a further byte after which a dump is complete."""
_FIRST_BYTE = 2.0
_STACK = b"(most recent call first)"
"""What every stack in a dump begins with."""
_SAMPLE_LIMIT = 0.5
_CRASH_WORDS = b"Fatal Python error"
"""What faulthandler writes first in a crash."""
_DESCRIBE_LIMIT = 1.0
_MOST_SAMPLED = 4
_END_LIMIT = 10.0
_INTERRUPT_GRACE = 3.0
_PUMPS = 3
"""How many there are from a connection to its first data: accept, greet, read."""


class ProcessOwner(Protocol):
    """What started a process, and can have it ended."""

    def end(self, process: TestProcess) -> None:
        """Have the process and all its descendants killed; its exit arrives through the connections."""


@dataclass(kw_only=True)
class WatchedRun:
    """A process under watch, and what may end it from outside."""

    owner: ProcessOwner
    process: TestProcess
    run: Run
    make_watchdogs: Callable[[], tuple[Sequence[KillCondition], Sequence[Observer]]] | None = None
    """Called when the test was not over at the first look: most are, and need none."""
    kill_conditions: Sequence[KillCondition] = ()
    observers: Sequence[Observer] = ()
    has_followers: bool = False
    """Whether its process has been sent the tests that follow, and does not wait for anybody if this one passes."""
    thinning: Thinning = field(default_factory=Thinning)

    def start_watching(self) -> None:
        if self.make_watchdogs is not None:
            make, self.make_watchdogs = self.make_watchdogs, None
            self.kill_conditions, self.observers = make()


@dataclass(kw_only=True)
class ActiveRun(WatchedRun):
    """One test that a process has been told to run."""

    item: pytest.Item
    owner: ProcessPool
    earlier: dict[pytest.Item, Sequence[str]] = field(default_factory=dict)
    """The tests that ran before it in the same process, and what each of them left there."""


class Supervisor:
    """Watches over runs. ``on_sample`` gets every sample as it arrives."""

    def __init__(
        self,
        connections: ProcessLinks,
        native: str,
        on_sample: Callable[[WatchedRun, Sampled], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._native = native
        self._on_sample = on_sample
        self._kernel_kills = kernel_kills()

    def supervise(self, active: WatchedRun) -> None:
        """Wait for the end of one run, and fill it in."""
        try:
            if not active.run.spec.stays or active.has_followers:
                self._let_run(active, _SHORT_TESTS if active.run.spec.stays else _SHORT_TEST)
            while not self.is_over(active):
                self.wait_for_news([active])
        except (KeyboardInterrupt, pytest.exit.Exception):
            self.interrupt([active])
            raise

    def _let_run(self, active: WatchedRun, seconds: float) -> None:
        """Give the process some time in which it wakes nobody up; only its death or a crash ends that. Most tests are
        over by then, and every wake-up costs more than reading a message does."""
        process = active.process
        self._take_in(active)
        if not _process_stays(active.run):
            self._connections.read(process)
            self._take_in(active)
        if not _process_stays(active.run):
            self._connections.mute(process)
            self._connections.wait_until(lambda: process.exit is not None or bool(process.crash_dump), seconds)
            self._connections.read(process)

    def is_over(self, active: WatchedRun) -> bool:
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
            if isinstance(active, ActiveRun):
                left = [(item.nodeid, line) for item, lines in active.earlier.items() for line in lines]
                ending.left_before = [f"{test}: {line}" for test, line in left]
            ending.dump = ending.dump or process.crash_dump.decode(errors="replace")
            if not run.completed_cleanly:
                ending.stdout, ending.stderr = read_output(process.stdout), read_output(process.stderr)
        return True

    def wait_for_news(self, runs: Sequence[WatchedRun], at_most: float = 3600.0) -> None:
        """Wait until something arrives from any process, or one of the watchdogs is due."""
        now = self._clock()
        due = [condition.due for active in runs for condition in active.kill_conditions]
        due += [observer.due for active in runs for observer in active.observers]
        self._connections.pump(min(min(due, default=now + at_most) - now, at_most))

    def interrupt(self, runs: Sequence[WatchedRun]) -> None:
        """Ctrl-C reaches the tests too; one that does not end is killed."""
        for active in runs:
            send_signal(active.process.pid, INTERRUPT)
        self._wait_for_exits(runs)
        self.end(runs)

    def end(self, runs: Sequence[WatchedRun]) -> None:
        """Kill the processes of *runs*."""
        for active in runs:
            active.owner.end(active.process)
        self._wait_for_exits(runs)

    def _wait_for_exits(self, runs: Sequence[WatchedRun]) -> None:
        self._connections.wait_until(lambda: all(active.process.exit is not None for active in runs), _INTERRUPT_GRACE)

    def _has_ended(self, active: WatchedRun) -> bool:
        if self._is_done(active):
            return True
        active.start_watching()
        if active.run.seen.debugged:
            active.kill_conditions = []
        now = self._clock()
        conditions = [condition for condition in active.kill_conditions if condition.due <= now]
        observers = [observer for observer in active.observers if observer.due <= now]
        if conditions or observers:
            for _ in range(_PUMPS):  # this process may have been slow itself: read what the test has sent first
                self._connections.pump(0)
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

    def _is_done(self, active: WatchedRun) -> bool:
        """Whether the test has come to an end, by all that has arrived from it."""
        process, run = active.process, active.run
        self._take_in(active)
        if process.exit is not None or _process_stays(run):
            return True
        self._connections.listen_to(process)
        if process.crash_dump and process.was_sampled and _CRASH_WORDS not in process.crash_dump:
            self._read_dump(process, _QUIET)
            if _CRASH_WORDS not in process.crash_dump:
                process.crash_dump.clear()  # the rest of a stack that it was asked for
        if process.crash_dump:
            self._handle_crash(active)
        return bool(process.crash_dump)

    def _take_in(self, active: WatchedRun) -> None:
        counters, run = active.process.counters, active.run
        if _process_stays(run):
            return  # what has arrived since belongs to the tests that follow
        if run.ending.killed is None:  # later, our signals may have woken it up
            run.seen.phase, run.seen.lap = counters.phase, counters.laps
            run.seen.phase_start = time.time() - counters.phase_seconds if counters.phase_entered else 0.0
        for message in active.process.take_messages(one_test=run.spec.stays):
            run.seen.handle(message)
            if isinstance(message, Sampled):
                self._on_sample(active, message)

    def _handle_crash(self, active: WatchedRun) -> None:
        """The process has dumped its stacks. It is held where it crashed, or about to die."""
        process, ending = active.process, active.run.ending
        self._read_dump(process)
        ending.dump = process.crash_dump.decode(errors="replace")
        if process.exit is None:
            ending.native_stack = native_stack(process.pid, self._native, dump=ending.dump)
        self._end_process(active)

    def _kill(self, active: WatchedRun, killed: Killed) -> None:
        """Kill a live test, after its stacks were read."""
        process, ending = active.process, active.run.ending
        ending.killed = killed
        if STACKS_SIGNAL is not None and catches_signal(process.pid, STACKS_SIGNAL):  # any other dies of it
            with suppress(ProcessLookupError):
                os.kill(process.pid, STACKS_SIGNAL)
            self._read_dump(process)
        ending.dump = process.crash_dump.decode(errors="replace") or last_stacks(process.stacks)
        ending.killed = replace(killed, facts=killed.gather())
        if killed.reason != "memory":
            ending.native_stack = native_stack(process.pid, self._native)
            self._have_described(process)
        self._end_process(active)

    def _have_described(self, process: TestProcess) -> None:
        """Have a process that is about to be killed send what only it can see."""
        if DESCRIBE_SIGNAL is not None and catches_signal(process.pid, DESCRIBE_SIGNAL):
            send_signal(process.pid, DESCRIBE_SIGNAL)
            self._connections.wait_until(
                lambda: process.exit is not None or any(isinstance(one, StallDescribed) for one in process.unread),
                _DESCRIBE_LIMIT,
            )

    def sample(self, process: TestProcess, threads: Collection[int]) -> dict[int, str]:
        """The Python stacks of some threads of a test that goes on, newest line first. The end may be missing on a busy
        machine; a thread that is not Python's has none."""
        stacks: dict[int, str] = {}
        if POSITION_SIGNAL is None:
            known = stacks_by_thread(last_stacks(process.stacks))
            natives = {process.natives.get(ident, ident): stack for ident, stack in known.items()}
            return {thread: natives[thread] for thread in threads if thread in natives}
        if not catches_signal(process.pid, POSITION_SIGNAL):
            return stacks  # a process that is not Python's, or not that far yet, would die of it
        for thread in sorted(threads)[:_MOST_SAMPLED]:
            if process.crash_dump or not signal_thread(process.pid, thread, POSITION_SIGNAL):
                break
            process.was_sampled = True
            self._read_dump(process, _SAMPLE_LIMIT)
            if _CRASH_WORDS in process.crash_dump:
                break  # it crashed at this very moment
            stacks[thread] = process.crash_dump.decode(errors="replace")
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
            size = len(process.crash_dump)
            wait = _QUIET if _STACK in process.crash_dump else _FIRST_BYTE  # a busy machine may take its time

    def _end_process(self, active: WatchedRun) -> None:
        process = active.process
        left = socket_directories(members_of(process.pid, self._connections.pids()))
        active.owner.end(process)
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

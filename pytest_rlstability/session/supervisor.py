"""Watches tests in their processes from the job to the end, and gathers what is known of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from pytest_rlstability.evidence.machine import kernel_kills
from pytest_rlstability.evidence.native import native_stack
from pytest_rlstability.evidence.processes import members_of
from pytest_rlstability.facts import Exit, Killed, Run
from pytest_rlstability.isolation import sockets
from pytest_rlstability.isolation.faults import STACKS_SIGNAL
from pytest_rlstability.isolation.hub import Hub, TestProcess
from pytest_rlstability.isolation.nursery import Nursery
from pytest_rlstability.isolation.output import read_output
from pytest_rlstability.isolation.watch import Watch
from pytest_rlstability.isolation.wire import Record

_SHORT_TEST = 0.02
"""Seconds a test has to end by itself before anything it says is listened to."""
_QUIET = 0.1
"""Seconds without a further byte after which a dump is taken as complete."""
_FIRST_WORD = 2.0
_END_LIMIT = 10.0
_INTERRUPT_GRACE = 1.0


@dataclass
class Job:
    """One run that a process has been told to do, and what may end it from outside."""

    nursery: Nursery
    process: TestProcess
    run: Run
    watches: Sequence[Watch]


class Supervisor:
    """Watches over runs in processes of one hub. ``tell`` hears every sample as it arrives."""

    def __init__(self, hub: Hub, native: str, tell: Callable[[Run, Record], None]) -> None:
        self._hub = hub
        self._native = native
        self._tell = tell
        self._kernel_kills = kernel_kills()

    def supervise(self, job: Job) -> None:
        """Wait for the end of one job, and fill in its run."""
        process = job.process
        try:
            if not job.run.shared:
                self._hub.wait_until(lambda: process.exit is not None or bool(process.fault), _SHORT_TEST)
            while not self.is_over(job):
                self.wait_for_news([job])
        except (KeyboardInterrupt, pytest.exit.Exception):
            self.interrupt([job])
            raise

    def is_over(self, job: Job) -> bool:
        """Look at a job, and end it if it has to be ended; once it is over, its run is filled in."""
        if not self._has_ended(job):
            return False
        process, run = job.process, job.run
        run.ended = time.time()
        run.threads = process.threads
        if process.exit is not None and not _has_gone_on(run):
            run.exit = process.exit
            run.killed_by_kernel = self._killed_by_kernel(process.exit)
            run.dump = run.dump or process.fault.decode(errors="replace")
            if not run.passed_the_rule:
                run.stdout, run.stderr = read_output(process.stdout), read_output(process.stderr)
        return True

    def wait_for_news(self, jobs: Sequence[Job], at_most: float = 3600.0) -> None:
        """Wait until something is heard of any process, or one of the watches is due."""
        now = time.monotonic()
        due = min((watch.due for job in jobs for watch in job.watches), default=now + at_most)
        self._hub.pump(min(due - now, at_most))

    def interrupt(self, jobs: Sequence[Job]) -> None:
        """Ctrl-C reaches the tests too; one that does not end is made to."""
        for job in jobs:
            with suppress(ProcessLookupError):
                os.kill(job.process.pid, signal.SIGINT)
        self._await_ends(jobs)
        self.end(jobs)

    def end(self, jobs: Sequence[Job]) -> None:
        """End jobs whose outcome nobody waits for any more."""
        for job in jobs:
            job.nursery.end(job.process)
        self._await_ends(jobs)

    def _await_ends(self, jobs: Sequence[Job]) -> None:
        self._hub.wait_until(lambda: all(job.process.exit is not None for job in jobs), _INTERRUPT_GRACE)

    def _has_ended(self, job: Job) -> bool:
        if self._is_done(job):
            return True
        due = [watch for watch in job.watches if watch.due <= time.monotonic()]
        if due:
            self._hub.pump(0)  # we may have been kept ourselves: what the test has said meanwhile comes first
            if self._is_done(job):
                return True
        for watch in due:
            if (killed := watch.look(job.process)) is not None:
                self._end(job.nursery, job.process, job.run, killed)
                return True
        return False

    def _is_done(self, job: Job) -> bool:
        """Whether the test has come to an end, by all that was heard of it."""
        process, run = job.process, job.run
        self._hear(process, run)
        if process.exit is not None or _has_gone_on(run):
            return True
        self._hub.listen_to(process)
        if process.fault:
            self._take_crash(job.nursery, process, run)
        return bool(process.fault)

    def _hear(self, process: TestProcess, run: Run) -> None:
        slot = process.slot
        if run.killed is None:  # our signals may have woken it up since
            run.phase, run.phase_start, run.lap = slot.phase, slot.phase_start, slot.laps
        for record in process.take_records(one_test=run.shared):
            run.hear(record)
            if record["kind"] == "sample":
                self._tell(run, record)

    def _take_crash(self, nursery: Nursery, process: TestProcess, run: Run) -> None:
        """The process has dumped its stacks and is held where it crashed, or about to die."""
        self._read_dump(process)
        run.dump = process.fault.decode(errors="replace")
        if process.exit is None:
            run.native = native_stack(process.pid, self._native)
        self._bring_to_end(nursery, process, run)

    def _end(self, nursery: Nursery, process: TestProcess, run: Run, killed: Killed) -> None:
        """End a live test, with its stacks for evidence."""
        run.killed = killed
        if STACKS_SIGNAL is not None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, STACKS_SIGNAL)
            self._read_dump(process)
        run.dump = process.fault.decode(errors="replace")
        run.killed = replace(killed, facts=killed.gather())
        if killed.reason != "memory":
            run.native = native_stack(process.pid, self._native)
        self._bring_to_end(nursery, process, run)

    def _read_dump(self, process: TestProcess) -> None:
        """Read until the process has nothing more to say."""
        patience, size = _FIRST_WORD, 0
        while process.exit is None:
            if not self._hub.wait_until(lambda: process.exit is not None or len(process.fault) > size, patience):  # noqa: B023
                return
            patience, size = _QUIET, len(process.fault)

    def _bring_to_end(self, nursery: Nursery, process: TestProcess, run: Run) -> None:
        left = sockets.socket_directories(members_of(process.pid, self._hub.pids()))
        nursery.end(process)
        if not self._hub.wait_until(lambda: process.exit is not None, _END_LIMIT):
            process.exit = Exit(None)
        sockets.remove(left)
        self._hear(process, run)

    def _killed_by_kernel(self, exit: Exit) -> bool:
        """Whether a SIGKILL was the out-of-memory killer's: nobody else counts them."""
        if exit.status != -9:
            return False
        before, self._kernel_kills = self._kernel_kills, kernel_kills()
        return self._kernel_kills > before


def _has_gone_on(run: Run) -> bool:
    """Whether this test is over, and what its process does now is another's."""
    return run.shared and run.done

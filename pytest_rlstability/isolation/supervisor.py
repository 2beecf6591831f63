"""Watches one test in its process from the job to the end, and gathers what is known of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pytest_rlstability.evidence.machine import kernel_kills
from pytest_rlstability.evidence.native import native_stack
from pytest_rlstability.facts import Exit, Killed, Run
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


class Supervisor:
    """Runs jobs in processes of one hub. ``tell`` hears every sample as it arrives."""

    def __init__(self, hub: Hub, native: str, tell: Callable[[Run, Record], None]) -> None:
        self._hub = hub
        self._native = native
        self._tell = tell
        self._kernel_kills = kernel_kills()

    def supervise(self, nursery: Nursery, process: TestProcess, run: Run, watches: Sequence[Watch]) -> None:
        """Wait for the end of *run*, which *process* has been told to do, and fill it in."""
        try:
            self._wait(nursery, process, run, watches)
        except KeyboardInterrupt:
            self._interrupt(nursery, process)
            raise
        run.ended = time.time()
        run.exit = process.exit
        run.threads = process.threads
        if process.exit is not None:
            run.killed_by_kernel = self._killed_by_kernel(process.exit)
            if not run.passed_the_rule:
                run.stdout, run.stderr = read_output(process.stdout), read_output(process.stderr)

    def _wait(self, nursery: Nursery, process: TestProcess, run: Run, watches: Sequence[Watch]) -> None:
        if run.shared:
            self._hub.listen_to(process)
        else:
            self._hub.wait_until(lambda: process.exit is not None or bool(process.fault), _SHORT_TEST)
        while not self._over(process, run):
            self._hub.listen_to(process)
            if process.fault:
                self._take_crash(nursery, process, run)
                return
            now = time.monotonic()
            for watch in watches:
                if watch.due <= now and (killed := watch.look(process)) is not None:
                    self._end(nursery, process, run, killed)
                    return
            self._hub.pump(min((watch.due for watch in watches), default=now + 3600) - now)
            self._hear(process, run)

    def _over(self, process: TestProcess, run: Run) -> bool:
        self._hear(process, run)
        return process.exit is not None or (run.shared and run.done)

    def _hear(self, process: TestProcess, run: Run) -> None:
        for record in process.take_records():
            run.hear(record)
            if record["kind"] == "sample":
                self._tell(run, record)
        slot = process.slot
        run.phase, run.phase_start, run.lap = slot.phase, slot.phase_start, slot.laps

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
        nursery.end(process)
        if not self._hub.wait_until(lambda: process.exit is not None, _END_LIMIT):
            process.exit = Exit(None)
        self._hear(process, run)

    def _interrupt(self, nursery: Nursery, process: TestProcess) -> None:
        """Ctrl-C reaches the test too; one that does not end is made to."""
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
        self._hub.wait_until(lambda: process.exit is not None, _INTERRUPT_GRACE)
        nursery.end(process)
        self._hub.wait_until(lambda: process.exit is not None, _INTERRUPT_GRACE)

    def _killed_by_kernel(self, exit: Exit) -> bool:
        """Whether a SIGKILL was the out-of-memory killer's: nobody else counts them."""
        if exit.status != -9:
            return False
        before, self._kernel_kills = self._kernel_kills, kernel_kills()
        return self._kernel_kills > before

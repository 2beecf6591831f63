"""Test processes of one backend on demand, the next ones prepared while the current test runs."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from pytest_rlstability.model.messages import EndProcess, TearDownFixtures
from pytest_rlstability.osinfo.native_stacks import native_stack
from pytest_rlstability.osinfo.processes import descendants_of, ticks_of
from pytest_rlstability.session.backends.interface import Backend, ProcessSpec
from pytest_rlstability.session.connections import Connections, ParentLink
from pytest_rlstability.session.test_process import TestProcess

START_LIMIT = 30.0
"""Seconds after which a process that has not connected is our fault, not the test's."""
_TRIES = 4
_PAUSE = 0.25
"""Seconds before the second try to start a process that could not be started; twice as many before each further one."""
_LOOK = 0.1
_GLANCE = 0.5
_PATIENCE = 4
"""How many times longer than its limit a computation may take on a busy machine."""
_END_LIMIT = 10.0


class NoProcessError(Exception):
    """No process could be started."""


class ProcessPool:
    """Hands out processes of one backend."""

    def __init__(self, connections: Connections, backend: Backend) -> None:
        self._connections = connections
        self.backend = backend
        self._parent: ParentLink | None = None
        self._spares: deque[tuple[ProcessSpec, TestProcess]] = deque()

    def take(self, spec: ProcessSpec, limit: float = START_LIMIT, still: float = math.inf) -> TestProcess:
        """A process that waits for its test, or one that died before it could. Its start may take *limit* seconds, and
        *still* seconds in which its parent does nothing."""
        reason, pause, tries = "", _PAUSE, _TRIES
        while tries > 0:
            tries -= 1
            process, began = self.request(spec), time.monotonic()
            started = self._wait_for_start(process, limit, still)
            if started and process.refused is None and not _lost(process):
                return process
            self._discard(process)
            if process.refused is not None:
                reason = process.refused.reason
                if not process.refused.again:
                    break
                time.sleep(pause)
                pause *= 2
            elif not started:
                reason = f"it started no process within {time.monotonic() - began:.0f} s"
                self._drop_parent()  # it is stopped, or hangs in a fixture or a handler that runs at every fork
                if still != math.inf:
                    break  # the fixtures would hang again
                tries -= 1  # that took long
            else:
                reason = "the process that starts tests was killed"
        raise NoProcessError(f"the {self.backend.name} backend gives no process: {reason}")

    def _wait_for_start(self, process: TestProcess, limit: float, still: float) -> bool:
        def is_known() -> bool:
            return process.ready or process.exit is not None or process.refused is not None

        return self._wait_while_working(is_known, limit, still)

    def _wait_while_working(self, condition: Callable[[], bool], limit: float, still: float) -> bool:
        """Wait for *condition*; False when the parent and what it has started have computed for *limit* seconds, when
        they did nothing for *still* seconds, or when all that takes far too long."""
        if still == math.inf:
            return self._connections.wait_until(condition, limit)
        parent, now = self._parent, time.monotonic
        deadline, used, moved, computed = now() + _PATIENCE * limit, -1, now(), 0
        while not self._connections.wait_until(condition, min(_GLANCE, deadline - now())):
            pids = [] if parent is None else [parent.pid, *descendants_of(parent.pid)]
            used, before = sum(map(ticks_of, pids)), used
            computed += used - before if before >= 0 else 0
            moved = moved if used == before else now()
            if now() >= min(deadline, moved + still) or computed >= limit * 100:
                return False
        return True

    def request(self, spec: ProcessSpec) -> TestProcess:
        """A process that may not have started yet."""
        return self._take_spare(spec) or self._start(spec)

    def is_ready(self, spec: ProcessSpec) -> bool:
        """Whether ``take`` would not have to wait."""
        if not self._spares:
            return False
        made_for, process = self._spares[0]
        return made_for == spec and process.ready and process.exit is None

    def prewarm(self, spec: ProcessSpec) -> None:
        """Have processes started for *spec* while something else goes on."""
        while len(self._spares) < self.backend.spares:
            self._spares.append((spec, self._start(spec)))

    def end(self, process: TestProcess) -> None:
        """Have a process and all its descendants killed; its exit arrives through the connections."""
        process.killed = True
        if self._parent is not None and process.exit is None:
            self._parent.messages.send(EndProcess(process.serial))

    def release(self, process: TestProcess) -> None:
        """Forget a process that has ended."""
        if self._parent is not None:
            self._parent.serials.discard(process.serial)
        self._connections.release(process)

    def stop(self) -> None:
        """End the spares and the parent."""
        while self._spares:
            self.release(self._spares.pop()[1])
        if self._parent is not None:
            self._connections.dismiss(self._parent)
            self._parent = None
            self.backend.end_parent(_END_LIMIT)

    def tear_down_fixtures(self, limit: float, still: float, native: str) -> list[str]:
        """Have the parent tear down what it has set up; the errors, here and before, as texts."""
        parent = self._parent
        if parent is None:
            return []
        ended = True
        if parent in self._connections.parents:
            parent.messages.send(TearDownFixtures())
            ended = self._wait_while_working(
                lambda: any(not said.error for said in parent.torn_down) or parent not in self._connections.parents,
                limit,
                still,
            )
        errors = [said.error for said in parent.torn_down if said.error]
        if not ended:
            stack = native_stack(parent.pid, native, python=True)
            errors.append(f"STALL: the tear-down of wide fixtures did not end\n{stack}\n")
        elif len(errors) == len(parent.torn_down):
            errors.append("The process in which wide fixtures were set up did not survive their tear-down.\n")
        else:
            return errors
        self._drop_parent()
        return errors

    def survives_canary(self, limit: float) -> bool:
        """Whether a canary, a process that does what an unsafe fork breaks, ends well within *limit* seconds."""
        canary = self._start(ProcessSpec(), canary=True)
        ended = self._connections.wait_until(lambda: canary.exit is not None, limit)
        self._discard(canary)
        return ended and canary.exit is not None and canary.exit.status == 0

    def _take_spare(self, spec: ProcessSpec) -> TestProcess | None:
        while self._spares:
            made_for, process = self._spares.popleft()
            if made_for == spec and process.exit is None and process.refused is None:
                return process
            self._discard(process)
        return None

    def _discard(self, process: TestProcess) -> None:
        if process.refused is None:
            self.end(process)
            self._connections.wait_until(lambda: process.exit is not None or process.refused is not None, _END_LIMIT)
        self.release(process)

    def _start(self, spec: ProcessSpec, *, canary: bool = False) -> TestProcess:
        process = self._connections.expect()
        process.first_order = self.backend.first_order(spec)
        order = replace(self.backend.start_order(process.serial, spec), canary=canary)
        for _ in range(2):  # a parent that was killed a moment ago is only noticed now
            parent = self._living_parent()
            if parent.messages.send(order):
                parent.serials.add(process.serial)
                return process
            self._connections.lose(parent)
        raise NoProcessError(f"the parent process of the {self.backend.name} backend does not answer")

    def _living_parent(self) -> ParentLink:
        """The parent process; a new one when the last was killed."""
        if self._parent is None or self._parent not in self._connections.parents:
            known = len(self._connections.parents)
            self._start_parent()
            self._connections.wait_until(
                lambda: len(self._connections.parents) > known or not self.backend.parent_lives(),
                START_LIMIT,
                look_every=_LOOK,
            )
            if len(self._connections.parents) == known:
                self.backend.end_parent(0.0)
                if self.backend.give_up_preload():
                    return self._living_parent()
                raise NoProcessError(f"the parent process of the {self.backend.name} backend did not start")
            self._parent = self._connections.parents[-1]
        return self._parent

    def _start_parent(self) -> None:
        """Start a parent; again a moment later when no more processes are allowed."""
        pause, tries = _PAUSE, _TRIES
        while True:
            try:
                return self.backend.start_parent()
            except OSError as error:
                tries -= 1
                if not tries:
                    reason = f"the process that starts tests cannot be started: {error.strerror}"
                    raise NoProcessError(f"the {self.backend.name} backend gives no process: {reason}") from None
            time.sleep(pause)
            pause *= 2

    def _drop_parent(self) -> None:
        """Kill the parent, which does not do its work, and everything below it."""
        if self._parent is not None:
            self.backend.end_parent(0.0)
            if self._parent in self._connections.parents:
                self._connections.lose(self._parent)
            self._parent = None


def _lost(process: TestProcess) -> bool:
    """Whether its parent was killed before it could start it."""
    return process.exit is not None and process.exit.status is None

"""Test processes of one backend on demand, the next ones prepared while the current test runs."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from pytest_rlstability.model.messages import EndProcess
from pytest_rlstability.session.backends.interface import Backend, ProcessSpec
from pytest_rlstability.session.connections import Connections, ParentLink, TestProcess

START_LIMIT = 60.0
"""Seconds after which a process that has not connected is our fault, not the test's."""


class NoProcessError(Exception):
    """No process could be started."""


class ProcessPool:
    """Hands out processes of one backend."""

    def __init__(self, connections: Connections, backend: Backend) -> None:
        self._connections = connections
        self.backend = backend
        self._parent: ParentLink | None = None
        self._spares: deque[tuple[ProcessSpec, TestProcess]] = deque()

    def take(self, spec: ProcessSpec) -> TestProcess:
        """A process that waits for its test."""
        process = self._wait_for_start(self.request(spec))
        if process.exit is not None and process.exit.status is None:
            process = self._wait_for_start(self._start(spec))  # its parent was killed before it started
        return process

    def _wait_for_start(self, process: TestProcess) -> TestProcess:
        if not self._connections.wait_until(lambda: process.ready or process.exit is not None, START_LIMIT):
            self.end(process)
            raise NoProcessError(f"the {self.backend.name} backend started no process within {START_LIMIT:.0f} s")
        return process

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
            self.backend.wait_for_parent()

    def survives_canary(self, limit: float) -> bool:
        """Whether a canary, a process that does what an unsafe fork breaks, ends well within *limit* seconds."""
        canary = self._start(ProcessSpec(), canary=True)
        ended = self._connections.wait_until(lambda: canary.exit is not None, limit)
        self._discard(canary)
        return ended and canary.exit is not None and canary.exit.status == 0

    def _take_spare(self, spec: ProcessSpec) -> TestProcess | None:
        while self._spares:
            made_for, process = self._spares.popleft()
            if made_for == spec and process.exit is None:
                return process
            self._discard(process)
        return None

    def _discard(self, process: TestProcess) -> None:
        self.end(process)
        self._connections.wait_until(lambda: process.exit is not None, START_LIMIT)
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
            self.backend.start_parent()
            if not self._connections.wait_until(lambda: len(self._connections.parents) > known, START_LIMIT):
                raise NoProcessError(f"the parent process of the {self.backend.name} backend did not start")
            self._parent = self._connections.parents[-1]
        return self._parent

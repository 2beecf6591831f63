"""Test processes on demand, the next ones made ready while the current one works."""

from __future__ import annotations

from collections import deque

from pytest_rlstability.isolation.hub import Hub, KeeperLink, TestProcess
from pytest_rlstability.isolation.protocol import Backend, Demand

BIRTH_LIMIT = 60.0
"""Seconds after which a process that has not reported for work is our fault, not the test's."""


class NurseryError(Exception):
    """No process could be had."""


class Nursery:
    """Hands out processes of one backend."""

    def __init__(self, hub: Hub, backend: Backend) -> None:
        self._hub = hub
        self.backend = backend
        self._keeper: KeeperLink | None = None
        self._spares: deque[tuple[Demand, TestProcess]] = deque()

    def take(self, demand: Demand) -> TestProcess:
        """A process that waits for its job."""
        process = self._await_birth(self.request(demand))
        if process.exit is not None and process.exit.status is None:
            process = self._await_birth(self._order(demand))  # its keeper was killed before it was born
        return process

    def _await_birth(self, process: TestProcess) -> TestProcess:
        if not self._hub.wait_until(lambda: process.ready or process.exit is not None, BIRTH_LIMIT):
            self.end(process)
            raise NurseryError(f"the {self.backend.name} backend gave no process within {BIRTH_LIMIT:.0f} s")
        return process

    def request(self, demand: Demand) -> TestProcess:
        """A process that may yet have to be born."""
        return self._take_spare(demand) or self._order(demand)

    def is_ready(self, demand: Demand) -> bool:
        """Whether ``take`` would not have to wait."""
        if not self._spares:
            return False
        made_for, process = self._spares[0]
        return made_for == demand and process.ready and process.exit is None

    def prewarm(self, demand: Demand) -> None:
        """Have processes made ready for *demand* while something else goes on."""
        while len(self._spares) < self.backend.spares:
            self._spares.append((demand, self._order(demand)))

    def end(self, process: TestProcess) -> None:
        """Have a process and all its descendants killed; its exit arrives through the hub."""
        process.ended = True
        if self._keeper is not None and process.exit is None:
            self._keeper.wire.send({"do": "end", "serial": process.serial})

    def bury(self, process: TestProcess) -> None:
        """Forget a process that has ended."""
        if self._keeper is not None:
            self._keeper.serials.discard(process.serial)
        self._hub.release(process)

    def stop(self) -> None:
        """End the spares and the keeper."""
        while self._spares:
            self.bury(self._spares.pop()[1])
        if self._keeper is not None:
            self._hub.dismiss(self._keeper)
            self._keeper = None
            self.backend.stop_keeper()

    def sing(self, limit: float) -> bool:
        """Whether a canary, a process that does what an unsafe fork breaks, comes back within *limit* seconds."""
        canary = self._order(Demand(), canary=True)
        came_back = self._hub.wait_until(lambda: canary.exit is not None, limit)
        self.end(canary)
        self._hub.wait_until(lambda: canary.exit is not None, BIRTH_LIMIT)
        self.bury(canary)
        return came_back and canary.exit is not None and canary.exit.status == 0

    def _take_spare(self, demand: Demand) -> TestProcess | None:
        while self._spares:
            made_for, process = self._spares.popleft()
            if made_for == demand and process.exit is None:
                return process
            self._discard(process)
        return None

    def _discard(self, process: TestProcess) -> None:
        self.end(process)
        self._hub.wait_until(lambda: process.exit is not None, BIRTH_LIMIT)
        self.bury(process)

    def _order(self, demand: Demand, *, canary: bool = False) -> TestProcess:
        process = self._hub.expect()
        process.brief = self.backend.brief(demand)
        order = {"do": "bear", "serial": process.serial, "canary": canary, **self.backend.order(demand)}
        for _ in range(2):  # one that was killed a moment ago is only noticed now
            keeper = self._living_keeper()
            if keeper.wire.send(order):
                keeper.serials.add(process.serial)
                return process
            self._hub.lose(keeper)
        raise NurseryError(f"the {self.backend.name} backend's keeper does not answer")

    def _living_keeper(self) -> KeeperLink:
        """The keeper; a new one when the last was killed."""
        if self._keeper is None or self._keeper not in self._hub.keepers:
            known = len(self._hub.keepers)
            self.backend.start_keeper()
            if not self._hub.wait_until(lambda: len(self._hub.keepers) > known, BIRTH_LIMIT):
                raise NurseryError(f"the {self.backend.name} backend's keeper did not start")
            self._keeper = self._hub.keepers[-1]
        return self._keeper

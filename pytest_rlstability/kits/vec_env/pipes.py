"""A pipe to a worker on which every wait ends: when the worker dies or does not answer in time."""

from __future__ import annotations

import os
import select
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from pytest_rlstability.compat.cpython import OwnReadAndWrite

if TYPE_CHECKING:
    from pytest_rlstability.kits.vec_env.guard import VecEnvGuard


class BoundedConnection(OwnReadAndWrite, Connection):
    """Takes the place of *connection*, the parent's end of the pipe to worker *index*.

    The descriptor is made non-blocking, and every wait also watches *signs_of_death*: descriptors that become readable
    when the worker ends. The pipe alone does not show that, because forked siblings hold each other's ends open.
    """

    def __init__(
        self, connection: Connection, index: int, signs_of_death: list[int], limit: float, guard: VecEnvGuard
    ) -> None:
        super().__init__(os.dup(connection.fileno()))
        connection.close()
        os.set_blocking(self.fileno(), False)
        self.index = index
        self.command = ""
        self.awaits_answer = False
        self.limit = limit
        self._guard = guard
        self._readable = self._poller(select.POLLIN, signs_of_death)
        self._writable = self._poller(select.POLLOUT, signs_of_death)

    def send(self, obj: Any) -> None:
        self.command = str(obj[0]) if isinstance(obj, tuple) and obj else ""
        self.awaits_answer = True
        super().send(obj)

    def recv(self) -> Any:
        self._wait(self._readable)
        answer = super().recv()
        self.awaits_answer = False
        return answer

    def is_silent(self) -> bool:
        """Whether an answer is due and no byte of it has arrived."""
        return self.awaits_answer and not self.closed and not self.poll(0)

    def read_some(self, handle: int, size: int) -> bytes:
        while True:
            try:
                part = os.read(handle, size)
            except BlockingIOError:
                self._wait(self._readable)
                continue
            except ConnectionResetError:
                part = b""
            if not part:
                self._guard.lost(self.index)
            return part

    def write_some(self, handle: int, data: bytes) -> int:
        while True:
            try:
                return os.write(handle, data)
            except BlockingIOError:
                self._wait(self._writable)
            except (BrokenPipeError, ConnectionResetError):
                self._guard.lost(self.index)

    def _wait(self, poller: select.poll) -> None:
        ready = poller.poll(self.limit * 1000)
        if not ready:
            self._guard.stuck(self.index)
        # If only a sign of death is ready, the worker is dead. Look again: it may have written just before its end.
        if self.fileno() not in dict(ready) and self.fileno() not in dict(poller.poll(0)):
            self._guard.lost(self.index)

    def _poller(self, event: int, signs_of_death: list[int]) -> select.poll:
        poller = select.poll()
        poller.register(self.fileno(), event)
        for descriptor in signs_of_death:
            poller.register(descriptor, select.POLLIN)
        return poller

"""A pipe to a worker on which nothing waits for ever: not for a dead worker, not for a stuck one."""

from __future__ import annotations

import os
import select
from multiprocessing.connection import Connection
from typing import Any, NoReturn, Protocol


class Warden(Protocol):
    """Whoever decides what a silent worker means; neither method returns."""

    def lost(self, index: int) -> NoReturn:
        """Worker *index* is dead, or has closed its end."""

    def stuck(self, index: int) -> NoReturn:
        """Worker *index* is alive and has neither read nor written for the whole limit."""


class BoundedConnection(Connection):
    """Takes the place of *connection*, the parent's end of the pipe to worker *index*.

    The descriptor is made non-blocking, and every wait also watches *signs_of_death*: descriptors that become readable
    when the worker ends. A pipe alone would not tell, for forked siblings hold each other's ends open.
    """

    def __init__(
        self, connection: Connection, index: int, signs_of_death: list[int], limit: float, warden: Warden
    ) -> None:
        super().__init__(os.dup(connection.fileno()))
        connection.close()
        os.set_blocking(self.fileno(), False)
        self.index = index
        self.command = ""
        self.awaits_answer = False
        self.limit = limit
        self._warden = warden
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
        """Whether an answer is due and not a byte of it is here."""
        return self.awaits_answer and not self.closed and not self.poll(0)

    # Connection reads and writes through these two, each with the function that does it as a parameter.

    def _recv(self, size: int) -> Any:
        return super()._recv(size, self._read_some)  # type: ignore[misc]

    def _send(self, buf: Any) -> None:
        super()._send(buf, self._write_some)  # type: ignore[misc]

    def _read_some(self, handle: int, size: int) -> bytes:
        while True:
            try:
                part = os.read(handle, size)
            except BlockingIOError:
                self._wait(self._readable)
                continue
            except ConnectionResetError:
                part = b""
            if not part:
                self._warden.lost(self.index)
            return part

    def _write_some(self, handle: int, data: bytes) -> int:
        while True:
            try:
                return os.write(handle, data)
            except BlockingIOError:
                self._wait(self._writable)
            except (BrokenPipeError, ConnectionResetError):
                self._warden.lost(self.index)

    def _wait(self, poller: select.poll) -> None:
        ready = poller.poll(self.limit * 1000)
        if not ready:
            self._warden.stuck(self.index)
        # Dead, if only that shows. What it wrote before its end counts, and may have come between the two looks.
        if self.fileno() not in dict(ready) and self.fileno() not in dict(poller.poll(0)):
            self._warden.lost(self.index)

    def _poller(self, event: int, signs_of_death: list[int]) -> select.poll:
        poller = select.poll()
        poller.register(self.fileno(), event)
        for descriptor in signs_of_death:
            poller.register(descriptor, select.POLLIN)
        return poller

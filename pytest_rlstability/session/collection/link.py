"""What a process that collects shares with its standby."""

from __future__ import annotations

import mmap
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from socket import socket as Socket  # noqa: N812

from pytest_rlstability.model.progress_counters import ProcessCounters

if sys.platform != "win32":
    from _socket import socketpair  # socket.socketpair uses what a conftest may have replaced

STANDBY, COLLECTOR = 0, 1
"""Who uses which end of a line."""


class CollectedNode:
    """Which node is being collected, in memory that the standby shares."""

    _LENGTH, _HELD = -2, -1

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        self._cells = memoryview(self._map)[: mmap.PAGESIZE].cast("Q")
        self.counters = ProcessCounters(self._cells)

    @property
    def nodeid(self) -> str:
        """Empty between two nodes."""
        return self._map[mmap.PAGESIZE :][: self._cells[self._LENGTH]].decode(errors="replace")

    @nodeid.setter
    def nodeid(self, nodeid: str) -> None:
        name = nodeid.encode(errors="replace")[: mmap.PAGESIZE]
        self._map[mmap.PAGESIZE : mmap.PAGESIZE + len(name)] = name
        self._cells[self._LENGTH] = len(name)
        self.counters.enter("import")

    @property
    def held(self) -> int:
        """The pid of a process that must not go on, because another one collects by now; 0: none."""
        return self._cells[self._HELD]

    @held.setter
    def held(self, pid: int) -> None:
        self._cells[self._HELD] = pid


@dataclass
class Lines:
    """What a process that collects and its standby are connected by: each uses one end."""

    dump: tuple[Socket, Socket]
    """faulthandler's text."""
    news: tuple[int, int]
    """``done``, or ``exit 3`` before the process ends itself."""

    @classmethod
    def open(cls) -> Lines:
        if sys.platform != "win32":
            one, other = socketpair()
            return cls((Socket(fileno=one.detach()), Socket(fileno=other.detach())), os.pipe())
        raise NotImplementedError

    def close(self, end: int) -> None:
        self.dump[end].close()
        os.close(self.news[end])


def fork() -> int | None:
    """As ``os.fork``; None when no more processes are allowed."""
    if sys.platform != "win32":
        with suppress(OSError):
            return os.fork()
    return None

"""The text of Linux's files ``stat``, ``status``, ``locks`` and ``maps``."""

from __future__ import annotations

from typing import NamedTuple


class Stat(NamedTuple):
    """The ``stat`` file of a process or thread. Processor time is in units of 10 ms."""

    name: str
    state: str
    """``R`` runs, ``S`` sleeps, ``D`` sleeps and cannot be woken, ``T`` is stopped, ``Z`` and ``X`` have ended."""
    parent: int
    group: int
    session: int
    ticks: int
    ticks_with_children: int
    """Including the children that have ended."""
    start: int
    """When it was started. It differs between two processes that had the same pid."""

    @classmethod
    def parse(cls, text: bytes) -> Stat:
        head, _, rest = text.rpartition(b")")
        state, *fields = rest.split()
        parent, group, session = map(int, fields[:3])
        times = [int(field) for field in fields[10:14]]
        name = head.partition(b"(")[2].decode(errors="replace")
        return cls(name, state.decode(), parent, group, session, sum(times[:2]), sum(times), int(fields[18]))


class FileLock(NamedTuple):
    """A line of ``locks``: a process that has locked a file, from byte *start* on."""

    owner: int
    writes: bool
    start: int


class Status:
    """The ``status`` file of a process or thread. A field is converted only when it is read."""

    __slots__ = ("_text",)

    def __init__(self, text: bytes) -> None:
        self._text = text

    def _word(self, name: bytes) -> bytes:
        return (self._text.partition(name + b":")[2].split(maxsplit=1) or [b"0"])[0]

    def size(self, name: bytes) -> int:
        """Bytes in a field such as ``RssAnon``."""
        return int(self._word(name)) * 1024

    def signals(self, name: bytes) -> int:
        """The signals in a field such as ``SigBlk``, one bit each."""
        return int(self._word(name), 16)

    @property
    def switches(self) -> int:
        """Context switches, voluntary or not."""
        fields = self._text.partition(b"voluntary_ctxt_switches:")[2].split(maxsplit=3)
        return int(fields[0]) + int(fields[2]) if len(fields) > 2 else 0


class MappedRegion:
    """A line of ``maps``."""

    __slots__ = ("device", "end", "inode", "path", "permissions", "span", "start")

    def __init__(self, line: bytes) -> None:
        self.span, self.permissions, _, self.device, self.inode, *path = line.split(None, 5)
        self.start, self.end = (int(edge, 16) for edge in self.span.split(b"-"))
        self.path = path[0] if path else b""

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def name(self) -> str:
        return self.path.decode(errors="replace")

    @property
    def is_shared(self) -> bool:
        return self.permissions.endswith(b"s")

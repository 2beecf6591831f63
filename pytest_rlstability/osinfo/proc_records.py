"""The text of Linux's files ``stat``, ``status`` and ``maps``. A field is converted only when it is read."""

from __future__ import annotations


class Stat:
    """The ``stat`` file of a process or thread."""

    __slots__ = ("_fields", "_head")

    def __init__(self, text: bytes) -> None:
        self._head, _, fields = text.rpartition(b")")
        self._fields = fields.split()

    @property
    def name(self) -> str:
        return self._head.partition(b"(")[2].decode(errors="replace")

    @property
    def state(self) -> str:
        """``R`` runs, ``S`` sleeps, ``D`` sleeps and cannot be woken, ``T`` is stopped, ``Z`` and ``X`` have ended."""
        return self._fields[0].decode()

    @property
    def parent(self) -> int:
        return int(self._fields[1])

    @property
    def group(self) -> int:
        return int(self._fields[2])

    @property
    def session(self) -> int:
        return int(self._fields[3])

    @property
    def ticks(self) -> int:
        """Processor time in units of 10 ms."""
        return int(self._fields[11]) + int(self._fields[12])

    @property
    def ticks_with_children(self) -> int:
        """The same, including the children that have ended."""
        return sum(int(field) for field in self._fields[11:15])

    @property
    def start(self) -> int:
        """When it was started. It differs between two processes that had the same pid."""
        return int(self._fields[19])


class Status:
    """The ``status`` file of a process or thread."""

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

    __slots__ = ("device", "inode", "path", "permissions", "span")

    def __init__(self, line: bytes) -> None:
        self.span, self.permissions, _, self.device, self.inode, *path = line.split(None, 5)
        self.path = path[0] if path else b""

    @property
    def bounds(self) -> tuple[int, int]:
        start, _, end = self.span.partition(b"-")
        return int(start, 16), int(end, 16)

    @property
    def start(self) -> int:
        return self.bounds[0]

    @property
    def size(self) -> int:
        return self.bounds[1] - self.bounds[0]

    @property
    def name(self) -> str:
        return self.path.decode(errors="replace")

    @property
    def is_shared(self) -> bool:
        return self.permissions.endswith(b"s")

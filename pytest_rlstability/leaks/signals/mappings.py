"""Anonymous memory mapped behind malloc's back, by native code or ``mmap``."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_rlstability.signals.proc import PAGE, ProcFile, read_bytes
from pytest_rlstability.signals.protocol import Signal, UnavailableError

_ARENA = 64 * 2**20
"""glibc reserves a thread's arena in aligned pieces of this size: those are malloc's."""


_MEMORY = (b"/dev/zero", b"/memfd:", b"/dev/shm", b"/SYSV")
"""Paths that are no files on disk."""


def regions(of_files: bool = False) -> Iterator[tuple[int, int, bytes, bytes]]:
    """start, end, permissions and path of each mapping that no file on disk stands behind, or of each other one."""
    for line in read_bytes("/proc/self/maps").splitlines():
        span, permissions, _, _, inode, *path = line.split(None, 5)
        name = path[0] if path else b""
        if (inode == b"0" or name.startswith(_MEMORY)) != of_files:
            start, _, end = span.partition(b"-")
            yield int(start, 16), int(end, 16), permissions, name


def _beyond_malloc(start: int, end: int, name: bytes) -> bool:
    if name.startswith((b"[heap]", b"[stack]", b"[v")):
        return False
    return not (start % _ARENA == 0 and end - start <= _ARENA)


class MapsSignal(Signal):
    """Looks through the maps only when the size of the address space has changed: 2 microseconds otherwise."""

    def __init__(self) -> None:
        self._statm = ProcFile("/proc/self/statm")
        self._pages = b""
        self._value = 0.0
        if not read_bytes("/proc/self/maps"):
            raise UnavailableError("cannot read /proc/self/maps")

    def read(self) -> float:
        pages = self._statm.fields()[0]
        if pages != self._pages:
            self._pages, self._value = pages, self.measure()
        return self._value

    def measure(self) -> float:
        """The signal's value, from the maps as they are now."""
        raise NotImplementedError

    def close(self) -> None:
        self._statm.close()


class AnonymousMappings(MapsSignal):
    name = "mappings"
    title = "anonymous mappings"
    unit = "bytes"
    smallest = 16.0 * PAGE
    resolution = 256.0
    ceiling = 4 * 2**30

    def measure(self) -> float:
        import psutil

        mapped = sum(end - start for start, end, _, name in regions() if _beyond_malloc(start, end, name))
        # malloc maps its large blocks itself, and counts them
        return float(mapped - (psutil.heap_info().mmap_used if hasattr(psutil, "heap_info") else 0))

    def inventory(self) -> dict[str, str]:
        found = {}
        for start, end, permissions, name in regions():
            if _beyond_malloc(start, end, name):
                kind = name.decode(errors="replace") or "anonymous"
                size = (end - start) // 1024
                found[f"{start:x}-{end:x}"] = f"{size} KiB {kind} {permissions.decode()} at {start:x}"
        return found

"""Anonymous memory that native code or ``mmap`` has mapped without malloc."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo.linux import PAGE, AddressSpace, mappings
from pytest_rlstability.osinfo.proc_records import MappedRegion

_ARENA = 64 * 2**20
"""glibc reserves the arena of a thread in aligned pieces of this size, which belong to malloc."""
_NOT_MAPPED = (b"[heap]", b"[stack]", b"[v")
_MEMORY = (b"/dev/zero", b"/memfd:", b"/dev/shm", b"/SYSV")
"""Paths of mappings that have no file on disk."""


def _is_file(one: MappedRegion) -> bool:
    return one.inode != b"0" and not one.path.startswith(_MEMORY)


def of_files() -> Iterator[MappedRegion]:
    """The mappings of files on disk."""
    return filter(_is_file, mappings())


def beyond_malloc() -> Iterator[tuple[MappedRegion, int]]:
    """The mappings without a file on disk that malloc did not make, and their sizes."""
    for one in mappings():
        if not _is_file(one) and not one.path.startswith(_NOT_MAPPED):
            start, end = one.bounds
            if start % _ARENA or end - start > _ARENA:
                yield one, end - start


class MapsSignal(Signal):
    """Reads the maps only when the size of the address space has changed. Otherwise a look takes 2 microseconds."""

    def __init__(self) -> None:
        self._space = AddressSpace()
        self._pages = b""
        self._value = 0.0

    def read(self) -> float:
        pages = self._space.pages()
        if pages != self._pages:
            self._pages, self._value = pages, self.measure()
        return self._value

    def measure(self) -> float:
        """The signal's value, from the maps as they are now."""
        raise NotImplementedError

    def close(self) -> None:
        self._space.close()


class AnonymousMappings(MapsSignal):
    name = "mappings"
    title = "anonymous mappings"
    group = "memory"
    unit = "bytes"
    smallest = 16.0 * PAGE
    resolution = 256.0
    ceiling = 4 * 2**30

    def measure(self) -> float:
        import psutil

        mapped = sum(size for _, size in beyond_malloc())
        # the large blocks that malloc maps are in the malloc signal
        return float(mapped - (psutil.heap_info().mmap_used if hasattr(psutil, "heap_info") else 0))

    def inventory(self) -> dict[str, str]:
        found = {}
        for one, size in beyond_malloc():
            kind = f"{one.name or 'anonymous'} {one.permissions.decode()}"
            found[one.span.decode()] = f"{size // 1024} KiB {kind} at {one.start:x}"
        return found

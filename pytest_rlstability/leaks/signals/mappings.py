"""What native code or ``mmap`` has mapped: memory without malloc, and files on disk."""

from __future__ import annotations

from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo.linux import PAGE, AddressSpace, mappings
from pytest_rlstability.osinfo.proc_records import MappedRegion

_ARENA = 64 * 2**20
"""glibc reserves the arena of a thread in aligned pieces of this size, which belong to malloc."""
_NOT_MAPPED = (b"[heap]", b"[stack]", b"[v")
_MEMORY = (b"/dev/zero", b"/memfd:", b"/dev/shm", b"/SYSV")
"""Paths of mappings that have no file on disk."""


class MappedFiles(Signal):
    """Mappings of files on disk, which need no open descriptor and no Python object.

    The maps are read only when the size of the address space has changed. Otherwise a look takes 2 microseconds. The
    ceiling is far below the 65530 mappings that Linux allows a process.
    """

    name = "mapped_files"
    title = "mappings of files"
    smallest = 32.0
    ceiling = 4096.0

    def __init__(self) -> None:
        self._space = AddressSpace()
        self._pages = b""
        self._value = 0.0

    def read(self) -> float:
        pages = self._space.pages()
        if pages != self._pages:
            self._pages, self._value = pages, self._measure(self._regions())
        return self._value

    def inventory(self) -> dict[str, str]:
        return {one.span.decode(): _describe(one) for one in self._regions()}

    def close(self) -> None:
        self._space.close()

    def _regions(self) -> list[MappedRegion]:
        return list(filter(_is_file, mappings()))

    def _measure(self, regions: list[MappedRegion]) -> float:
        return len(regions)


class AnonymousMappings(MappedFiles):
    """Memory without a file on disk that malloc did not map."""

    name = "mappings"
    title = "anonymous mappings"
    group = "memory"
    unit = "bytes"
    smallest = 16.0 * PAGE
    resolution = 256.0
    ceiling = 4 * 2**30

    def _regions(self) -> list[MappedRegion]:
        return [one for one in mappings() if not _is_file(one) and not _is_mallocs(one)]

    def _measure(self, regions: list[MappedRegion]) -> float:
        import psutil

        # the large blocks that malloc maps are in the malloc signal
        counted_there = psutil.heap_info().mmap_used if hasattr(psutil, "heap_info") else 0
        return float(sum(one.size for one in regions) - counted_there)


def _is_file(one: MappedRegion) -> bool:
    return one.inode != b"0" and not one.path.startswith(_MEMORY)


def _is_mallocs(one: MappedRegion) -> bool:
    return one.path.startswith(_NOT_MAPPED) or (one.start % _ARENA == 0 and one.size <= _ARENA)


def _describe(one: MappedRegion) -> str:
    return f"{one.size // 1024} KiB {one.name or 'anonymous'} {one.permissions.decode()} at {one.start:x}"

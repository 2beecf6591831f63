"""Mappings of files on disk, by native code or ``mmap``: no descriptor has to be open for one, and no object alive."""

from __future__ import annotations

from pytest_rlstability.signals.mappings import regions
from pytest_rlstability.signals.proc import ProcFile, read_bytes
from pytest_rlstability.signals.protocol import Signal, UnavailableError


class MappedFiles(Signal):
    """Looks through the maps only when the size of the address space has changed.

    The ceiling is far below the 65530 mappings that Linux gives a process: one that has them all stops growing.
    """

    name = "mapped_files"
    title = "mappings of files"
    smallest = 32.0
    ceiling = 4096.0

    def __init__(self) -> None:
        self._statm = ProcFile("/proc/self/statm")
        self._pages = b""
        self._count = 0.0
        if not read_bytes("/proc/self/maps"):
            raise UnavailableError("cannot read /proc/self/maps")

    def read(self) -> float:
        pages = self._statm.fields()[0]
        if pages != self._pages:
            self._pages = pages
            self._count = float(sum(1 for _ in regions(of_files=True)))
        return self._count

    def inventory(self) -> dict[str, str]:
        return {
            f"{start:x}-{end:x}": f"{(end - start) // 1024} KiB of {name.decode(errors='replace')} at {start:x}"
            for start, end, _, name in regions(of_files=True)
        }

    def close(self) -> None:
        self._statm.close()

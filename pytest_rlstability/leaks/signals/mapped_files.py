"""Mappings of files on disk, by native code or ``mmap``. They need no open descriptor and no Python object."""

from __future__ import annotations

from pytest_rlstability.leaks.signals.mappings import MapsSignal, of_files


class MappedFiles(MapsSignal):
    """The ceiling is far below the 65530 mappings that Linux allows a process."""

    name = "mapped_files"
    title = "mappings of files"
    smallest = 32.0
    ceiling = 4096.0

    def measure(self) -> float:
        return float(sum(1 for _ in of_files()))

    def inventory(self) -> dict[str, str]:
        return {one.span.decode(): f"{one.size // 1024} KiB of {one.name} at {one.start:x}" for one in of_files()}

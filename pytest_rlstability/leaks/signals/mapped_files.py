"""Mappings of files on disk, by native code or ``mmap``: no descriptor has to be open for one, and no object alive."""

from __future__ import annotations

from pytest_rlstability.signals.mappings import MapsSignal, regions


class MappedFiles(MapsSignal):
    """The ceiling is far below the 65530 mappings that Linux gives a process: one that has them all stops growing."""

    name = "mapped_files"
    title = "mappings of files"
    smallest = 32.0
    ceiling = 4096.0

    def measure(self) -> float:
        return float(sum(1 for _ in regions(of_files=True)))

    def inventory(self) -> dict[str, str]:
        return {
            f"{start:x}-{end:x}": f"{(end - start) // 1024} KiB of {name.decode(errors='replace')} at {start:x}"
            for start, end, _, name in regions(of_files=True)
        }

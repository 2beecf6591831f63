"""Bytes that malloc has in use, over all arenas and large blocks."""

from __future__ import annotations

from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo import UnavailableError


class MallocBytes(Signal):
    name = "malloc"
    title = "malloc bytes in use"
    group = "memory"
    unit = "bytes"
    smallest = 4096.0
    resolution = 24.0
    ceiling = 2**29

    def __init__(self) -> None:
        import psutil

        if not hasattr(psutil, "heap_info"):
            raise UnavailableError("psutil cannot read the heap of this C library")
        self._heap_info = psutil.heap_info
        self.read()

    def read(self) -> float:
        heap = self._heap_info()
        return float(heap.heap_used + heap.mmap_used)

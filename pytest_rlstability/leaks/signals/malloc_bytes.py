"""Bytes that malloc has handed out and not got back, over all arenas and large blocks."""

from __future__ import annotations

from pytest_rlstability.signals.allowances import allowed_bytes
from pytest_rlstability.signals.protocol import Signal, UnavailableError


class MallocBytes(Signal):
    name = "malloc"
    title = "malloc bytes in use"
    unit = "bytes"
    smallest = 4096.0
    resolution = 24.0
    ceiling = 2**29

    def __init__(self) -> None:
        import psutil

        if not hasattr(psutil, "heap_info"):
            raise UnavailableError("psutil cannot look into this C library's heap")
        self._heap_info = psutil.heap_info
        self.read()

    def read(self) -> float:
        heap = self._heap_info()
        return float(heap.heap_used + heap.mmap_used - allowed_bytes())

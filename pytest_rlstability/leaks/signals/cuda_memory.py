"""CUDA memory, once the test has started CUDA: what torch's allocator has in use, and what the driver has."""

from __future__ import annotations

import sys
from typing import Any

from pytest_rlstability.leaks.signals.protocol import Signal


def _started_cuda() -> Any:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


class CudaAllocator(Signal):
    name = "cuda"
    title = "CUDA memory (torch)"
    group = "memory"
    unit = "bytes"
    smallest = 4096.0
    resolution = 24.0
    ceiling = 2**30

    def read(self) -> float:
        cuda = _started_cuda()
        return float(sum(cuda.memory_allocated(device) for device in range(cuda.device_count()))) if cuda else 0.0


class CudaDriver(Signal):
    """Other programs share the card."""

    name = "cuda_driver"
    title = "CUDA memory (driver)"
    group = "memory"
    unit = "bytes"
    foreign = True
    smallest = 8 * 2.0**20
    resolution = 4096.0
    ceiling = 2**30

    def read(self) -> float:
        cuda = _started_cuda()
        devices = range(cuda.device_count()) if cuda else ()
        return float(sum(total - free for free, total in map(cuda.mem_get_info, devices))) if devices else 0.0

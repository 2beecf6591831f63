"""Memory of this process, as each of its allocators counts it."""

from __future__ import annotations

import gc
import sys
from typing import Any

from pytest_rlstability.compat.cpython import mimalloc_bytes, uses_mimalloc
from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo import WINDOWS, UnavailableError


class PythonBlocks(Signal):
    """Blocks of Python's own allocator. Native code has its own memory."""

    name = "python"
    title = "Python memory blocks"
    group = "memory"
    collected = True
    smallest = 24.0
    resolution = 0.03
    ceiling = 3e5

    def __init__(self) -> None:
        if not sys.getallocatedblocks():
            raise UnavailableError("this Python does not count its blocks (PYTHONMALLOC=malloc?)")

    def read(self) -> float:
        return sys.getallocatedblocks()


class TrackedObjects(Signal):
    """Objects that the garbage collector tracks, frozen ones included: one that replaces another is not growth."""

    name = "objects"
    title = "tracked objects"
    group = "memory"
    collected = True
    expensive = True
    smallest = 24.0
    resolution = 0.03
    ceiling = 3e5

    def read(self) -> float:
        return len(gc.get_objects()) + gc.get_freeze_count()


class _Bytes(Signal):
    group = "memory"
    unit = "bytes"
    collected = True
    smallest = 4096.0
    resolution = 24.0
    ceiling = 2**29


class MallocBytes(_Bytes):
    """Bytes that malloc has in use, over all arenas and large blocks. Where Python's objects are in memory of mimalloc,
    those of this thread are added."""

    name = "malloc"
    title = "malloc bytes in use"

    def __init__(self) -> None:
        import psutil

        if not hasattr(psutil, "heap_info"):
            raise UnavailableError("psutil cannot read the heap of this C library")
        self._heap_info = psutil.heap_info
        self._adds_mimalloc = uses_mimalloc()
        if self._adds_mimalloc and (WINDOWS or mimalloc_bytes() is None):
            raise UnavailableError("this Python uses mimalloc, and does not say how much of it")
        self.read()

    def read(self) -> float:
        heap = self._heap_info()
        # Windows counts all private memory as mapped, the heap's own included.
        used = heap.heap_used if WINDOWS else heap.heap_used + heap.mmap_used
        return float(used + (mimalloc_bytes() or 0) if self._adds_mimalloc else used)


class TorchStorages(_Bytes):
    """CPU tensors, each storage counted once; 0 until the test imports torch."""

    name = "torch"
    title = "torch CPU storages"
    expensive = True

    def read(self) -> float:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "Tensor"):
            return 0.0
        seen: dict[int, int] = {}
        gc.unfreeze()  # a tensor that replaces a frozen one is not growth
        # not isinstance(): a lazy proxy would import what it stands for
        for tensor in (candidate for candidate in gc.get_objects() if issubclass(type(candidate), torch.Tensor)):
            if tensor.device.type == "cpu" and tensor.layout is torch.strided:
                # not untyped_storage(): that makes a Python object which lives as long as the storage
                address = tensor.data_ptr()
                seen[address] = max(seen.get(address, 0), tensor.numel() * tensor.element_size())
        gc.freeze()
        return float(sum(seen.values()))


def _started_cuda() -> Any:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


class CudaAllocator(_Bytes):
    """What torch's allocator has in use, once the test has started CUDA."""

    name = "cuda"
    title = "CUDA memory (torch)"
    ceiling = 2**30

    def read(self) -> float:
        cuda = _started_cuda()
        return float(sum(map(cuda.memory_allocated, range(cuda.device_count())))) if cuda else 0.0


class CudaDriver(_Bytes):
    """What the driver has in use. Other programs share the card."""

    name = "cuda_driver"
    title = "CUDA memory (driver)"
    foreign = True
    smallest = 8 * 2.0**20
    resolution = 4096.0
    ceiling = 2**30

    def read(self) -> float:
        cuda = _started_cuda()
        devices = range(cuda.device_count()) if cuda else ()
        return float(sum(total - free for free, total in map(cuda.mem_get_info, devices))) if devices else 0.0


class ResidentSet(Signal):
    """For the charts only: allocators make it grow where nothing leaks."""

    name = "rss"
    title = "resident memory"
    unit = "bytes"
    judged = False

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()

    def read(self) -> float:
        return float(self._process.memory_info().rss)


class UniqueSet(ResidentSet):
    name = "uss"
    title = "resident memory of its own"

    def read(self) -> float:
        return float(self._process.memory_full_info().uss)

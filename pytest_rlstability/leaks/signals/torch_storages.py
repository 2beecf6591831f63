"""Bytes of the CPU tensors made since the collector was frozen, each storage counted once."""

from __future__ import annotations

import gc
import sys

from pytest_rlstability.leaks.signals.protocol import Signal


class TorchStorages(Signal):
    """Reads 0 until the test itself has imported torch."""

    name = "torch"
    title = "torch CPU storages"
    group = "memory"
    unit = "bytes"
    expensive = True
    smallest = 4096.0
    resolution = 24.0
    ceiling = 2**29

    def read(self) -> float:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "Tensor"):
            return 0.0
        seen: dict[int, int] = {}
        # not isinstance(): a lazy proxy would import what it stands for
        for tensor in (candidate for candidate in gc.get_objects() if issubclass(type(candidate), torch.Tensor)):
            if tensor.device.type == "cpu" and tensor.layout is torch.strided:
                # not untyped_storage(): that makes a Python object which lives as long as the storage
                address = tensor.data_ptr()
                seen[address] = max(seen.get(address, 0), tensor.numel() * tensor.element_size())
        return float(sum(seen.values()))

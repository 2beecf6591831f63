"""The signals there are, one line each, most telling first: a report's headline names the first that leaks."""

from __future__ import annotations

import importlib
from collections.abc import Collection

from pytest_rlstability.signals.protocol import Signal, UnavailableError

SIGNALS: dict[str, str] = {
    "fds": "descriptors:Descriptors",
    "threads": "threads:Threads",
    "processes": "processes:Processes",
    "zombies": "processes:Zombies",
    "worker_fds": "worker_descriptors:WorkerDescriptors",
    "shm": "shared_memory:SharedMemory",
    "tempfiles": "temporary_files:TemporaryFiles",
    "mapped_files": "mapped_files:MappedFiles",
    "python": "python_blocks:PythonBlocks",
    "objects": "gc_objects:TrackedObjects",
    "torch": "torch_storages:TorchStorages",
    "cuda": "cuda_memory:CudaAllocator",
    "cuda_driver": "cuda_memory:CudaDriver",
    "malloc": "malloc_bytes:MallocBytes",
    "mappings": "mappings:AnonymousMappings",
    "workers": "worker_memory:WorkerMemory",
    "rss": "resident:ResidentSet",
    "uss": "resident:UniqueSet",
}
GROUPS: dict[str, tuple[str, ...]] = {
    "memory": ("python", "objects", "torch", "cuda", "cuda_driver", "malloc", "mappings", "workers"),
    "resources": ("fds", "threads", "processes", "zombies", "worker_fds", "shm", "tempfiles", "mapped_files"),
}
CHARTED_ONLY = ("rss", "uss")


def expand(names: Collection[str]) -> tuple[str, ...]:
    """The signals that *names* (signals or groups) stand for, in the registry's order.

    >>> expand(["threads", "fds"])
    ('fds', 'threads')
    """
    chosen: set[str] = set()
    for name in names:
        if name not in SIGNALS and name not in GROUPS:
            raise ValueError(f"{name!r} is not a signal; there are {', '.join([*GROUPS, *SIGNALS])}")
        if name in CHARTED_ONLY:
            raise ValueError(f"{name!r} is charted but never judged: resident memory also grows where nothing leaks")
        chosen.update(GROUPS.get(name, (name,)))
    return tuple(name for name in SIGNALS if name in chosen)


def signal_class(name: str) -> type[Signal]:
    """The signal of this *name*, not opened: what it is called and counted in is known without reading it.

    >>> signal_class("rss").unit
    'bytes'
    """
    module, _, class_name = SIGNALS[name].partition(":")
    found: type[Signal] = getattr(importlib.import_module(f"{__package__}.{module}"), class_name)
    return found


def open_signals(names: Collection[str] | None = None) -> tuple[list[Signal], dict[str, str]]:
    """The signals that this machine has, and for each it has not the reason.

    ``signals, missing = open_signals(["fds", "memory"])``; None means all. Close each when done.
    """
    wanted = SIGNALS if names is None else (*expand(names), *CHARTED_ONLY)
    signals: list[Signal] = []
    missing: dict[str, str] = {}
    for name in wanted:
        try:
            signals.append(signal_class(name)())
        except UnavailableError as why:
            missing[name] = str(why)
    return signals, missing

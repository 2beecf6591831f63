"""What a test left behind, cheaply enough to ask after every one of them."""

from __future__ import annotations

import os
import threading

from pytest_rlstability.leaks.segments import own_segments
from pytest_rlstability.signals.proc import read_link
from pytest_rlstability.signals.processes import command_of, find_descendants, has_children
from pytest_rlstability.signals.shared_memory import DIRECTORY as SHARED_MEMORY

_DESCRIPTORS = "/proc/self/fd"


class Leftovers:
    """A look before a test and one after it.

    ``before = Leftovers(); ...the test...; before.since()`` gives short texts such as ``descriptor 7 -> /dev/null``,
    ``thread Thread-3 (wait)``, ``process 4711: sleep 1000``, ``shared memory psm_4c1d``. Costs some 50 microseconds
    a look where the test left nothing.
    """

    def __init__(self) -> None:
        self._descriptors = _descriptors()
        self._threads = frozenset(threading.enumerate())
        self._segments = _names(SHARED_MEMORY)
        self._children = _children()

    def since(self) -> list[str]:
        """What there is now and was not then."""
        return [*self._new_descriptors(), *self._new_threads(), *self._new_children(), *self._new_segments()]

    def _new_descriptors(self) -> list[str]:
        new = sorted(_descriptors() - self._descriptors, key=int)
        return [f"descriptor {name} -> {read_link(f'{_DESCRIPTORS}/{name}')}" for name in new]

    def _new_threads(self) -> list[str]:
        return [f"thread {thread.name}" for thread in threading.enumerate() if thread not in self._threads]

    def _new_children(self) -> list[str]:
        return [f"process {pid}: {command_of(pid)}" for pid in sorted(_children() - self._children)]

    def _new_segments(self) -> list[str]:
        new = _names(SHARED_MEMORY) - self._segments
        return [f"shared memory {name}" for name in own_segments(SHARED_MEMORY, new)]


def _names(directory: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(directory))
    except OSError:
        return frozenset()


def _descriptors() -> frozenset[str]:
    """Those that outlast the look: the one it was listed through would hide a leak that gets its number."""
    return frozenset(name for name in _names(_DESCRIPTORS) if _is_open(int(name)))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _children() -> frozenset[int]:
    """Direct and further children; looks through all processes only if there is one at all."""
    if not hasattr(os, "waitid") or not has_children():
        return frozenset()
    return frozenset(find_descendants())

"""What a test left behind, cheaply enough to ask after every one of them."""

from __future__ import annotations

import os
import threading

from pytest_rlstability.evidence.processes import is_helper
from pytest_rlstability.leaks.segments import own_segments
from pytest_rlstability.signals.proc import links_of, read_link
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
        children = _children() - self._children
        helpers = {pid for pid in children if is_helper(pid)}
        return [
            *self._new_descriptors(helpers),
            *self._new_threads(),
            *(f"process {pid}: {command_of(pid)}" for pid in sorted(children - helpers)),
            *self._new_segments(),
        ]

    def _new_descriptors(self, helpers: set[int]) -> list[str]:
        """Not those that lead to *helpers*: they stay as long as the process does, as multiprocessing means them to."""
        new = sorted(_descriptors() - self._descriptors, key=int)
        targets = {name: read_link(f"{_DESCRIPTORS}/{name}") for name in new}
        theirs = {target for pid in helpers for target in links_of(pid) if target.startswith(("pipe:", "socket:"))}
        return [f"descriptor {name} -> {target}" for name, target in targets.items() if target not in theirs]

    def _new_threads(self) -> list[str]:
        return [f"thread {thread.name}" for thread in threading.enumerate() if thread not in self._threads]

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

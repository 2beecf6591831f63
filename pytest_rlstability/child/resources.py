"""What a test did not clean up. A look costs little enough to take one before and after every test."""

from __future__ import annotations

from collections.abc import Iterable
from os import fstat, listdir, stat  # bound here: a test may replace them
from threading import active_count  # bound here: a test may replace them
from threading import enumerate as all_threads

from pytest_rlstability.compat.cpython import started_processes
from pytest_rlstability.osinfo import UnavailableError, linux
from pytest_rlstability.osinfo.descriptors import own_descriptors
from pytest_rlstability.osinfo.linux import descriptor_target, links_of
from pytest_rlstability.osinfo.processes import find_descendants, has_children, is_helper, short_command
from pytest_rlstability.osinfo.shared_memory import DIRECTORY as SHARED_MEMORY
from pytest_rlstability.osinfo.shared_memory import own_segments

_MOST = 8192
"""How many descriptors are looked at one by one, where they cannot be listed."""


class ResourceSnapshot:
    """The descriptors, threads, processes and shared memory of this process at one moment.

    ``before = ResourceSnapshot(); ...the test...; before.left_since()`` gives short texts such as
    ``descriptor 7 -> /dev/null``, ``thread Thread-3 (wait)``, ``process 4711: sleep 1000``, ``shared memory psm_4c1d``.
    A look costs some 50 microseconds where the test left nothing.
    """

    def __init__(self) -> None:
        self._descriptors = _descriptors()
        self._threads = frozenset(all_threads())
        self._segments = _names(SHARED_MEMORY)
        self._children = _children()
        self._counts = _counts()
        self._owners: dict[str, str] = {}

    def note_owner(self, test: str) -> list[str]:
        """*test* has ended and its process goes on: what is new belongs to it. Cheap where the counts are the same."""
        counts, before = _counts(), self._counts
        self._counts = counts
        if counts == before:
            return []
        new = [line for line in self._left() if line not in self._owners]
        self._owners.update(dict.fromkeys(new, test))
        return new

    def left_since(self) -> list[str]:
        """What is there now and was not then, with the test that made it where several were noted."""
        return [f"{line} (since {self._owners[line]})" if line in self._owners else line for line in self._left()]

    def _left(self) -> list[str]:
        children = _children() - self._children
        helpers = {pid for pid in children if is_helper(pid)}
        return [
            *self._new_descriptors(helpers),
            *self._new_threads(),
            *_named_processes(children - helpers),
            *self._new_segments(),
        ]

    def _new_descriptors(self, helpers: set[int]) -> list[str]:
        """Not those that lead to *helpers*: they stay as long as the process does, as multiprocessing means them to."""
        new = sorted(_descriptors() - self._descriptors, key=int)
        targets = {name: descriptor_target("self", name) for name in new}
        theirs = {target for pid in helpers for target in links_of(pid) if target.startswith(("pipe:", "socket:"))}
        return [f"descriptor {name} -> {target}" for name, target in targets.items() if target not in theirs]

    def _new_threads(self) -> list[str]:
        return [f"thread {thread.name}" for thread in all_threads() if thread not in self._threads]

    def _new_segments(self) -> list[str]:
        new = _names(SHARED_MEMORY) - self._segments
        return [f"shared memory {name}" for name in own_segments(SHARED_MEMORY, new)]


def _named_processes(pids: Iterable[int]) -> list[str]:
    """multiprocessing's workers have names, and command lines that say nothing."""
    workers = {popen.pid: f"multiprocessing's worker {process.name}" for process, popen in started_processes()}
    return [f"process {pid}: {workers.get(pid) or short_command(pid)}" for pid in sorted(pids)]


def _counts() -> tuple[int, int, bool, tuple[int, int]]:
    """How many descriptors and threads there are, whether there is a child, and what changes with the segments."""
    return _descriptor_count() or len(_names("/dev/fd")), active_count(), has_children(), _segments_mark()


def _segments_mark() -> tuple[int, int]:
    try:
        now = stat(SHARED_MEMORY)
        return now.st_mtime_ns, now.st_size
    except OSError:
        return 0, 0


def _descriptor_count() -> int:
    """What Linux tells since 6.2 without a list of them; 0 where it does not."""
    try:
        return stat(linux.OWN_DESCRIPTORS).st_size
    except OSError:
        return 0


def _names(directory: str) -> frozenset[str]:
    try:
        return frozenset(listdir(directory))
    except OSError:
        return frozenset()


def _descriptors() -> frozenset[str]:
    """Those that outlast the look: the one it was listed through would hide a leak that gets its number."""
    try:
        return frozenset(name for name in own_descriptors() if _is_open(int(name)))
    except UnavailableError:
        return frozenset()
    except OSError:  # the test took all that there are: none is left to list them through
        return frozenset(str(number) for number in range(_MOST) if _is_open(number))


def _is_open(descriptor: int) -> bool:
    try:
        fstat(descriptor)
    except OSError:
        return False
    return True


def _children() -> frozenset[int]:
    """Direct and further children; looks through all processes only if there is one at all."""
    if not has_children():
        return frozenset()
    return frozenset(find_descendants())

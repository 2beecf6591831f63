"""Child processes, and what grows inside them: the workers of SubprocVecEnv and AsyncVectorEnv."""

from __future__ import annotations

import os
import time

from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo.linux import GONE, descriptor_target, descriptors_of, require_proc, touched_and_mapped
from pytest_rlstability.osinfo.processes import find_descendants, has_children, short_command


class _LastLook:
    """The last look at all processes, which the four signals of one sample share."""

    valid_for = 0.0005

    def __init__(self) -> None:
        self._taken_at = (0, 0.0)
        self._found: dict[int, str] = {}

    def descendants(self) -> dict[int, str]:
        """pid -> state letter of every process that descends from this one."""
        if not has_children():
            return {}
        owner, moment = self._taken_at
        if owner != os.getpid() or time.monotonic() - moment > self.valid_for:
            self._found = find_descendants()
            self._taken_at = (os.getpid(), time.monotonic())
        return self._found


_last_look = _LastLook()


def _children(*, ended: bool = False) -> list[int]:
    """The pids of the descendants that run, or of those that have *ended* and were not waited for."""
    return [pid for pid, state in _last_look.descendants().items() if (state in "ZX") == ended]


class Processes(Signal):
    name = "processes"
    title = "child processes"
    exact = True
    ended = False

    def __init__(self) -> None:
        require_proc()

    def read(self) -> float:
        return len(_children(ended=self.ended))

    def inventory(self) -> dict[str, str]:
        kind = "zombie" if self.ended else "process"
        return {str(pid): f"{kind} {pid}: {short_command(pid)}" for pid in _children(ended=self.ended)}


class Zombies(Processes):
    name = "zombies"
    title = "zombie processes"
    ended = True


class WorkerDescriptors(Signal):
    """Counts what each worker has opened since it was first seen, so that a new worker is not growth."""

    name = "worker_fds"
    title = "descriptors of child processes"
    exact = True

    def __init__(self) -> None:
        require_proc()
        self._seen: dict[int, int] = {}

    def read(self) -> float:
        alive = {pid: len(descriptors_of(pid)) for pid in _children()}
        self._seen = {pid: min(count, self._seen.get(pid, count)) for pid, count in alive.items()}
        return float(sum(count - self._seen[pid] for pid, count in alive.items()))

    def inventory(self) -> dict[str, str]:
        return {
            f"{pid} {name} {to}": f"descriptor {name} -> {to} of process {pid}"
            for pid in _children()
            for name in descriptors_of(pid)
            if (to := descriptor_target(pid, name)) != GONE
        }


class WorkerMemory(Signal):
    """For each worker, the smaller of the growth of touched and of mapped memory since it was first seen.

    Touched memory also grows when a forked worker copies its parent's pages or fills an array it had reserved.
    Mapped memory grows in steps of a whole arena.
    """

    name = "workers"
    title = "memory of child processes"
    group = "memory"
    unit = "bytes"
    smallest = 2.0**20
    resolution = 256.0
    ceiling = 2**30

    def __init__(self) -> None:
        require_proc()
        self._seen: dict[int, tuple[int, int]] = {}

    def read(self) -> float:
        return float(sum(map(self._growth, _children())))

    def inventory(self) -> dict[str, str]:
        return {
            f"{pid} {size}": f"process {pid} grew by {size // 1024} KiB since it was first seen: {short_command(pid)}"
            for pid in _children()
            if (size := self._growth(pid))
        }

    def _growth(self, pid: int) -> int:
        memory = touched_and_mapped(pid)
        if memory is None:
            return 0
        first = self._seen.setdefault(pid, memory)
        return max(0, min(memory[0] - first[0], memory[1] - first[1]))

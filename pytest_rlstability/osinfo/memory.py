"""How much memory a process tree uses, and how much its limit, its container or the machine has left."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_rlstability.osinfo import LINUX, linux, portable
from pytest_rlstability.osinfo.processes import descendants_of


def resident_memory(pid: int) -> int:
    """Resident memory of a process and its descendants in bytes, without files; shared memory counts once."""
    parts = [_own_and_shared(member) for member in (pid, *descendants_of(pid))]
    return sum(own for own, _ in parts) + max(shared for _, shared in parts)


def _own_and_shared(pid: int) -> tuple[int, int]:
    if not LINUX:
        return portable.resident_memory(pid), 0
    status = linux.status(pid)
    return (0, 0) if status is None else (status.size(b"RssAnon"), status.size(b"RssShmem"))


def memory_fields(root: Path = Path("/")) -> dict[str, int]:
    """The memory of the machine in bytes: ``MemTotal``, ``MemAvailable`` and, on Linux, others."""
    return linux.memory_fields(root) if LINUX else portable.memory_fields()


def memory_room(limit: int | None = None) -> float:
    """Bytes left below *limit* (``rl_isolated(memory=...)``) for this process tree, or else on this machine."""
    if limit is not None:
        return max(0.0, limit - resident_memory(os.getpid()))
    free = float(memory_fields()["MemAvailable"])
    within = container_room()
    return free if within is None else min(free, within)


def container_room(root: Path = Path("/")) -> float | None:
    """Bytes left in the fullest control group around this process; None without a limit."""
    rooms = (max(0.0, limit - used) for limit, used in linux.memory_limits(root) if used is not None)
    return min(rooms, default=None)

"""How much of the machine this process may use: memory, processors, shared memory, and the limits of ``ulimit``."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_rlstability.doctor.files import read_text

_UNLIMITED = 2**60  # version 1 of control groups has no word for it, only a very large number


def gather(root: Path) -> dict[str, Any]:
    groups = read_text(root / "proc/self/cgroup")
    return {
        **_memory(root),
        **_shared_memory(root),
        "memory_limit": memory_limit(root, groups),
        "cpu_limit": cpu_limit(root, groups),
        "limits": _resource_limits(),
    }


def memory_limit(root: Path, groups: str) -> int | None:
    """Bytes that the control group of this process may use, the tightest of it and its parents."""
    found = [
        int(text)
        for directory in _group_directories(root, groups, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := read_text(directory / name)).isdigit()
    ]
    return min((value for value in found if value < _UNLIMITED), default=None)


def cpu_limit(root: Path, groups: str) -> float | None:
    """Processors' worth of time that the control group may use, ``1.5`` for one and a half."""
    found = []
    for directory in _group_directories(root, groups, "cpu"):
        quota, _, period = read_text(directory / "cpu.max").partition(" ")
        if not quota:
            quota, period = read_text(directory / "cpu.cfs_quota_us"), read_text(directory / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def _group_directories(root: Path, groups: str, controller: str) -> Iterator[Path]:
    """Where the files of *controller* may be, from this process's group up to the root of the hierarchy."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if controllers == "":
            top = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
        else:
            continue
        directory = top / path.strip("/")
        while True:
            yield directory
            if directory == top:
                break
            directory = directory.parent


def _memory(root: Path) -> dict[str, int | None]:
    fields = {}
    for line in read_text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        amount = value.split()[:1]
        if amount and amount[0].isdigit():
            fields[name] = int(amount[0]) * 1024
    if not fields and sys.platform != "linux":
        import psutil

        memory = psutil.virtual_memory()
        fields = {"MemTotal": memory.total, "MemAvailable": memory.available}
    return {"memory": fields.get("MemTotal"), "memory_available": fields.get("MemAvailable")}


def _shared_memory(root: Path) -> dict[str, int | None]:
    try:
        usage = shutil.disk_usage(root / "dev/shm")
    except OSError:
        return {"shm_bytes": None, "shm_free": None}
    return {"shm_bytes": usage.total, "shm_free": usage.free}


def _resource_limits() -> dict[str, int | None]:
    """The soft limits, None where there is none."""
    if os.name == "nt":
        return {}
    import resource

    limits = {}
    for name in ("stack", "nofile", "nproc", "memlock", "core", "as"):
        kind = getattr(resource, f"RLIMIT_{name.upper()}", None)
        if kind is not None:
            soft, _ = resource.getrlimit(kind)
            limits[name] = None if soft == resource.RLIM_INFINITY else soft
    return limits

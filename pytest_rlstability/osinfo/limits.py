"""How much of the machine this process may use: memory, processors, shared memory, and the limits of ``ulimit``."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from pytest_rlstability.osinfo import linux
from pytest_rlstability.osinfo.memory import memory_fields
from pytest_rlstability.osinfo.shared_memory import DIRECTORY as SHARED_MEMORY


def gather(root: Path) -> dict[str, Any]:
    memory = memory_fields(root)
    return {
        "memory": memory.get("MemTotal"),
        "memory_available": memory.get("MemAvailable"),
        **_shared_memory(root),
        "memory_limit": memory_limit(root),
        "cpu_limit": cpu_limit(root),
        "limits": _resource_limits(),
    }


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the control group of this process may use, the tightest of it and its parents."""
    return min((limit for limit, _ in linux.memory_limits(root)), default=None)


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Processors' worth of time that the control group may use, ``1.5`` for one and a half."""
    return min(linux.cpu_limits(root), default=None)


def allowed_processors() -> int:
    """Processors that the scheduler may run this process on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_processors() -> int:
    """Whole processors that this process may keep busy, at least 1: those allowed, within the container's limit."""
    limit = cpu_limit()
    return max(1, allowed_processors() if limit is None else min(allowed_processors(), int(limit)))


def _shared_memory(root: Path) -> dict[str, int | None]:
    try:
        usage = shutil.disk_usage(root / SHARED_MEMORY.lstrip("/"))
    except OSError:
        return {"shm_bytes": None, "shm_free": None}
    return {"shm_bytes": usage.total, "shm_free": usage.free}


def _resource_limits() -> dict[str, int | None]:
    """The soft limits by name; None means unlimited."""
    if sys.platform == "win32":
        return {}
    import resource

    kinds = ((name, f"RLIMIT_{name.upper()}") for name in ("stack", "nofile", "nproc", "memlock", "core", "as"))
    soft = {name: resource.getrlimit(getattr(resource, kind))[0] for name, kind in kinds if hasattr(resource, kind)}
    return {name: None if limit == resource.RLIM_INFINITY else limit for name, limit in soft.items()}

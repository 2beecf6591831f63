"""What the run stood on: versions, platform, and what the kernel says about memory."""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

_OF_INTEREST = (
    "pytest", "pytest-rlstability", "numpy", "torch", "stable-baselines3", "sb3-contrib", "gymnasium", "pyboy",
    "box2d", "pygame", "opencv-python", "tensorflow", "jax",
)  # fmt: skip


@functools.cache
def platform_line() -> str:
    """Python, operating system and processor in one line."""
    libc = " ".join(part for part in platform.libc_ver() if part)
    parts = [f"Python {platform.python_version()}", platform.platform(terse=True), platform.machine(), libc]
    return ", ".join(part for part in parts if part)


def versions_line(modules: Iterable[str] = ()) -> str:
    """The versions of the packages that matter to training code, and of those that *modules* belong to."""
    wanted = {name.split(".")[0].lower() for name in modules}
    shown = []
    for name in _OF_INTEREST:
        if name.startswith("pytest") or name.replace("-", "_") in wanted or name in wanted:
            version = _version(name)
            if version:
                shown.append(f"{name} {version}")
    return ", ".join(shown)


@functools.cache
def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def kernel_kills() -> int:
    """How many processes the kernel has killed for memory since boot, as far as this process may know."""
    total = 0
    for path, pattern in (("/proc/vmstat", r"^oom_kill (\d+)"), (_cgroup_events(), r"^oom_kill (\d+)")):
        try:
            found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
        except OSError:
            continue
        total += int(found[1]) if found else 0
    return total


@functools.cache
def _cgroup_events() -> str:
    try:
        group = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
    except OSError:
        group = "/"
    return f"/sys/fs/cgroup{group.rstrip('/')}/memory.events"

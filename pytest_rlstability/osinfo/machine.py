"""Which Python, operating system and package versions the run uses."""

from __future__ import annotations

import functools
import platform
from importlib import metadata

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


def versions_line() -> str:
    """The versions of the installed packages that matter to training code."""
    return ", ".join(f"{name} {version}" for name in _OF_INTEREST if (version := _version(name)))


@functools.cache
def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""

"""Takes from the package what macOS does not have, on Linux. ``python tests/platforms/like_mac.py [pytest's options]``
runs the tests that need no Linux in this way, in this Python; see docs/platforms.md.

This file is imported as ``sitecustomize`` by every process of the run. Only the package is fooled: pytest, psutil and
the standard library see Linux.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

VARIABLE = "RLSTABILITY_LIKE_MAC"
_HIDDEN = ("/proc", "/sys", "/dev/shm")
_LINUX_ONLY = ("pidfd_open", "sched_getaffinity", "sched_setaffinity", "memfd_create", "posix_fadvise")
_MOST_DESCRIPTORS = 10240
_FAR = 12
"""Calls between the package and the function that is asked for a hidden file."""


def pretend() -> None:
    """Become a process of macOS, as far as the package can see."""
    # What decides by the platform at its import is imported before.
    import asyncio  # noqa: F401
    import builtins
    import io
    import platform
    import resource
    import selectors
    import signal
    import sysconfig

    import psutil  # noqa: F401

    sysconfig.get_config_vars()
    platform.platform()
    for name in _LINUX_ONLY:
        vars(os).pop(name, None)
    if sys.version_info < (3, 13):
        del os.waitid
    for name in ("SIGRTMIN", "SIGRTMAX"):
        delattr(signal, name)
    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc, assignment]
    for module, name in ((builtins, "open"), (io, "open"), *((os, name) for name in _FILE_FUNCTIONS)):
        setattr(module, name, _hiding(getattr(module, name)))
    os.path.isdir = _hiding(os.path.isdir, answer=False)
    resource.setrlimit = _limited(resource, resource.setrlimit)
    sys.platform = "darwin"


_FILE_FUNCTIONS = ("listdir", "open", "readlink", "stat", "scandir")


def _hiding(original: Any, **otherwise: bool) -> Any:
    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(_HIDDEN) and _package_asks():
            if otherwise:
                return otherwise["answer"]
            raise FileNotFoundError(2, "hidden: macOS does not have it", os.fspath(path))
        return original(path, *arguments, **options)

    return call


def _package_asks() -> bool:
    frame = sys._getframe(2)
    for _ in range(_FAR):
        name = "" if frame is None else frame.f_globals.get("__name__", "")
        if frame is None or name.startswith(("psutil", "multiprocessing")):
            return False
        if name.startswith("pytest_rlstability"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _limited(resource: Any, original: Any) -> Any:
    """macOS names no hard limit of descriptors, and refuses one above ``kern.maxfilesperproc``."""

    def setrlimit(kind: int, limits: tuple[int, int]) -> None:
        if kind == resource.RLIMIT_NOFILE and limits[0] > _MOST_DESCRIPTORS:
            raise ValueError("current limit exceeds maximum limit")
        original(kind, limits)

    return setrlimit


def main(arguments: list[str]) -> int:
    import subprocess

    neutral = Path(__file__).with_name("neutral.txt").read_text().split()
    with tempfile.TemporaryDirectory(prefix="like-mac-") as directory:
        Path(directory, "sitecustomize.py").symlink_to(Path(__file__).resolve())
        environment = {**os.environ, VARIABLE: "1", "PYTHONPATH": directory}
        command = [sys.executable, "-m", "pytest", "-m", "", *(arguments or neutral)]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
if os.environ.get(VARIABLE):
    pretend()

"""Processes that tests know by a number written to a file."""

from __future__ import annotations

import os
import time
from pathlib import Path


def is_gone(pid: int) -> bool:
    """Whether the process is gone within ten seconds."""
    for _ in range(1000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def pid_in(path: Path) -> int:
    """The number that a process writes into *path*."""
    for _ in range(1000):
        if path.exists() and path.read_text().endswith("\n"):
            return int(path.read_text())
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written")

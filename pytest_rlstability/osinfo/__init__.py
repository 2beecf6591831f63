"""Asks the operating system about processes, threads, descriptors and memory, and ends processes."""

from __future__ import annotations

import os
import sys

LINUX = sys.platform == "linux"
WINDOWS = sys.platform == "win32"
CAN_FORK = LINUX and hasattr(os, "pidfd_open")
"""Whether tests can be forked: where they can, their parent notices their end by a pidfd."""


class UnavailableError(Exception):
    """Raised where this machine cannot measure something; the text says why."""


def require_directory(path: str) -> None:
    if not os.path.isdir(path):
        raise UnavailableError(f"there is no {path}")

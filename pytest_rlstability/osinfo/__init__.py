"""Asks the operating system about processes, threads, descriptors and memory, and ends processes."""

from __future__ import annotations

import os


class UnavailableError(Exception):
    """Raised where this machine cannot measure something; the text says why."""


def require_directory(path: str) -> None:
    if not os.path.isdir(path):
        raise UnavailableError(f"there is no {path}")

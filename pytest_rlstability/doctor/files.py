"""Reading the small files in which a kernel speaks of itself."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str:
    """What a small file says, ``""`` when it is not there or not for us."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""

"""Directories that multiprocessing makes for its sockets and removes at exit: what is killed cannot."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from pytest_rlstability.signals.proc import links_of

_SOCKETS = Path("/proc/net/unix")
_PREFIX = "pymp-"


def socket_directories(pids: Iterable[int]) -> set[Path]:
    """The directories of multiprocessing's in which one of *pids* listens."""
    listening = _listening()
    if not listening:
        return set()
    return {listening[link] for pid in pids for link in links_of(pid) if link in listening}


def remove(directories: Iterable[Path]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def _listening() -> dict[str, Path]:
    """What a descriptor leads to -> directory, of every socket in such a directory."""
    try:
        lines = _SOCKETS.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    sockets = (line.split(maxsplit=7)[6:] for line in lines if _PREFIX in line)
    places = {
        f"socket:[{inode}]": Path(path).parent for inode, path in (fields for fields in sockets if len(fields) == 2)
    }
    return {link: place for link, place in places.items() if place.name.startswith(_PREFIX) and place.is_absolute()}

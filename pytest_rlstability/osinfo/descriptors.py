"""Open descriptors of this process, and the sockets of multiprocessing that a killed process leaves behind."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from os import close, dup2, listdir  # bound here: a test may replace them
from pathlib import Path
from time import monotonic, sleep

from pytest_rlstability.osinfo import WINDOWS, UnavailableError, linux

_OWN = next((path for path in (linux.OWN_DESCRIPTORS, "/dev/fd") if os.path.isdir(path)), "")
_HELD = 5.0
"""Seconds for which a file may still be held by a process that was killed."""
_SOCKET_DIRECTORIES = "pymp-"
"""What the names of multiprocessing's directories begin with. A process that is killed does not remove its own."""

if sys.platform == "win32":
    BINARY = os.O_BINARY
else:
    BINARY = 0
"""For ``os.open``, beside others: without it Windows changes line ends."""


def own_descriptors() -> list[str]:
    """The open descriptors of this process, including the one that lists them."""
    if not _OWN:
        raise UnavailableError(f"neither {linux.OWN_DESCRIPTORS} nor /dev/fd exists")
    return listdir(_OWN)


def replace_descriptor(place: int, descriptor: int) -> None:
    """Give the open file *descriptor* the number *place*, which others already use."""
    dup2(descriptor, place, inheritable=False)
    close(descriptor)


def socket_directories(pids: Iterable[int]) -> set[Path]:
    """The directories of multiprocessing in which one of *pids* has a socket."""
    places = {
        f"socket:[{inode}]": place
        for inode, path in linux.unix_sockets(_SOCKET_DIRECTORIES)
        if (place := Path(path).parent).name.startswith(_SOCKET_DIRECTORIES) and place.is_absolute()
    }
    return {places[link] for pid in pids for link in linux.links_of(pid) if link in places} if places else set()


def remove_directory(directory: Path) -> None:
    """Remove a directory with all that is in it. Windows refuses that while a process that is about to end has a file
    there open, so it is tried for a while."""
    deadline = monotonic() + (_HELD if WINDOWS else 0.0)
    shutil.rmtree(directory, ignore_errors=True)
    while monotonic() < deadline and directory.exists():
        sleep(0.05)
        shutil.rmtree(directory, ignore_errors=True)


def remove_directories(directories: Iterable[Path]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)

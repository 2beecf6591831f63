"""Reading ``/proc`` again and again without opening it each time."""

from __future__ import annotations

import os

from pytest_rlstability.signals.protocol import UnavailableError

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

GONE = "?"


class ProcFile:
    """A file of ``/proc`` kept open: one system call per reading.

    ``ProcFile("/proc/self/statm").fields()`` gives the whitespace-separated fields.
    """

    def __init__(self, path: str) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UnavailableError(f"cannot read {path}: {error.strerror}") from None

    def fields(self) -> list[bytes]:
        return os.pread(self._descriptor, 4096, 0).split()

    def close(self) -> None:
        os.close(self._descriptor)


def require_directory(path: str) -> None:
    if not os.path.isdir(path):
        raise UnavailableError(f"there is no {path}")


def read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return GONE


def read_bytes(path: str) -> bytes:
    """The content of *path*, or nothing when its process has just gone."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def links_of(pid: int) -> list[str]:
    """What each descriptor of a process leads to."""
    directory = f"/proc/{pid}/fd"
    try:
        return [read_link(f"{directory}/{number}") for number in os.listdir(directory)]
    except OSError:
        return []

"""Python stacks in a file, for systems on which no signal can ask a process for them.

The process writes them every few seconds (``child.stack_writer``). On Windows a crash is written to the same file: a
socket is not a descriptor there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pytest_rlstability.osinfo.descriptors import BINARY
from pytest_rlstability.osinfo.fatal_signals import STACKS_SIGNAL, signal_of_exit

NEEDED = STACKS_SIGNAL is None
TIMED = b"Timeout ("
"""What faulthandler's watchdog writes before stacks."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+).*\n", re.MULTILINE)
_FATAL, _EXCEPTION = b"Fatal Python error: ", b"Windows fatal exception: "
_SHARE, _SHORTEST = 0.4, 0.1
_LONGEST = 1 << 20
"""Bytes at the end of a file that are read."""


def stacks_path(directory: Path, serial: int) -> Path:
    return directory / f"{serial}.stacks"


def sent_path(directory: Path, serial: int) -> Path:
    """Where a process of Windows keeps a copy of the messages that it has sent."""
    return directory / f"{serial}.sent"


def open_to_append(path: Path) -> int:
    """A descriptor to write to; what others write to the file stays."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | BINARY, 0o600)


def seconds_between(*limits: float) -> float:
    """How often to write, so that whatever ends a test at one of these limits finds stacks that are fresh. 0: never."""
    given = [limit for limit in limits if limit]
    return max(_SHORTEST, _SHARE * min(given)) if NEEDED and given else 0.0


def last_stacks(path: Path) -> str:
    """What was written last."""
    _, found, stacks = _end_of(path).rpartition(TIMED)
    return stacks.partition(b"\n")[2].decode(errors="replace") if found else ""


def stacks_by_thread(stacks: str) -> dict[int, str]:
    """What was written about each thread, by its ident."""
    parts = _THREAD.split(stacks)
    return {int(ident, 16): text for ident, text in zip(parts[1::2], parts[2::2], strict=True)}


def crash_in(path: Path, status: int) -> bytes:
    """What was written about the crash that ended a process of Windows with this *status*. Exceptions that a process
    has survived are in the file too."""
    _, found, crash = _end_of(path).rpartition(_EXCEPTION if signal_of_exit(status) else _FATAL)
    return found + crash if found else b""


def _end_of(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LONGEST))
            return file.read()
    except OSError:
        return b""

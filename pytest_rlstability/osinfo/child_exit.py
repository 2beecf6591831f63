"""How a parent notices that a child process has ended, with which status, and what it left running."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Collection
from typing import IO

from pytest_rlstability.osinfo import LINUX, portable
from pytest_rlstability.osinfo.process_control import exit_descriptor
from pytest_rlstability.osinfo.processes import children_of

if sys.platform == "win32":
    from pytest_rlstability.osinfo import windows
else:
    from resource import RUSAGE_SELF, getrusage

_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024
_ends: dict[int, tuple[int, int]] = {}
"""What a thread that waited for a child has learnt, by pid."""


def exit_notice(pid: int) -> IO[bytes] | socket.socket:
    """Something that becomes readable when the child ends. On Windows it must be in a job."""
    if (descriptor := exit_descriptor(pid)) is not None:
        return open(descriptor, "rb", buffering=0)
    ours, theirs = socket.socketpair()
    threading.Thread(target=_notice_exit, args=(pid, theirs), daemon=True).start()
    return ours


def _notice_exit(pid: int, notice: socket.socket) -> None:
    _ends[pid] = _wait(pid)
    notice.close()


def wait_for(pid: int) -> tuple[int, int]:
    """Exit status, as subprocess gives it (negative: a signal), and peak memory in bytes."""
    return _ends.pop(pid) if pid in _ends else _wait(pid)


if sys.platform == "win32":
    _wait = windows.wait_for_child

    def own_peak_memory() -> int:
        """The most bytes that this process has used; 0: unknown."""
        return 0

    def left_running(child: int, others: Collection[int], *, alone: bool) -> list[int]:
        return windows.job_members(child)

else:

    def own_peak_memory() -> int:
        return getrusage(RUSAGE_SELF).ru_maxrss * _PEAK_UNIT

    def _wait(pid: int) -> tuple[int, int]:
        _, status, usage = os.wait4(pid, 0)
        return os.waitstatus_to_exitcode(status), usage.ru_maxrss * _PEAK_UNIT

    def left_running(child: int, others: Collection[int], *, alone: bool) -> list[int]:
        """The processes that a child, which led a session, left running when it ended, without this one's *others*.

        On Linux they became children of this process; all of them are its own if it was *alone*.
        """
        if not LINUX:
            return [pid for pid in portable.pids() if _session_of(pid) == child]
        strays = [pid for pid in children_of(os.getpid()) if pid not in others]
        return strays if alone else [pid for pid in strays if _session_of(pid) == child]

    def _session_of(pid: int) -> int:
        try:
            return os.getsid(pid)
        except OSError:
            return 0

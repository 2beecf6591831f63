"""Ends processes with everything they started, and sets what happens to them when their parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from pytest_rlstability.osinfo import LINUX, linux
from pytest_rlstability.osinfo.proc_records import Stat
from pytest_rlstability.osinfo.processes import ENDED, descendants_in, descendants_of, is_alive, process_table

if sys.platform == "win32":
    from subprocess import CREATE_NEW_PROCESS_GROUP

    from pytest_rlstability.osinfo import windows

    OWN_SESSION: Mapping[str, Any] = {"creationflags": CREATE_NEW_PROCESS_GROUP}
    INTERRUPT: int = signal.CTRL_BREAK_EVENT
else:
    OWN_SESSION: Mapping[str, Any] = {"start_new_session": True}
    INTERRUPT = signal.SIGINT
"""OWN_SESSION: arguments for ``Popen`` of a process that Ctrl-C does not reach. INTERRUPT: what is sent to it then."""

_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.02
"""Seconds between two looks at the processes to end."""
_UNKILLABLE_AFTER = 10.0
"""Seconds after which a process that survives SIGKILL is given up: it is stuck in the kernel."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(number: int = _KILL) -> None:
    """Have this process killed, or sent another signal, when the thread that started it ends. Linux only."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies. Linux only."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def allow_tracing() -> None:
    """Let any process of this user attach, so that a debugger may read the stacks. Linux only."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


def exit_descriptor(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the system has none."""
    if sys.platform == "linux" and hasattr(os, "pidfd_open"):
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None


def send_signal(pid: int, number: int) -> None:
    """Send a signal, unless the process has ended."""
    with suppress(OSError):
        os.kill(pid, number)


def wake_if_stopped(pid: int) -> None:
    """Have a process go on that somebody has stopped."""
    if sys.platform == "linux" and (stat := linux.stat(pid)) is not None and stat.state in "Tt":
        send_signal(pid, signal.SIGCONT)


def kill_tree(pid: int) -> None:
    """Kill a process, the group that it leads and its descendants, without waiting for their end."""
    descendants = list(descendants_of(pid))
    if sys.platform == "win32":
        windows.kill_job(pid)
    else:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, _KILL)
    for member in (pid, *descendants):
        send_signal(member, _KILL)


def end_tree(pid: int, *, grace: float = 0.0, variable: str = "") -> None:
    """End a process and everything it started, and wait until all have ended.

    These are its descendants, its session and group if it leads one, and every process that was started with
    *variable* (``NAME=value``) in its environment. With a *grace* they get SIGTERM first, and SIGKILL so many seconds
    later. The caller reaps *pid*.
    """
    _end(_Tree(pid, variable).alive, grace, lambda member: False)


def end_children(
    find: Callable[[], Iterable[int]], *, grace: float, spare: Callable[[int], bool] = lambda pid: False
) -> None:
    """End and reap the children of this process that *find* finds, until it finds none. They get SIGTERM, and SIGKILL
    after *grace* seconds. Those that *spare* picks end by themselves and get no SIGTERM."""
    _end(lambda: [pid for pid in find() if not reap(pid)], grace, spare)


def _end(find: Callable[[], list[int]], grace: float, spare: Callable[[int], bool]) -> None:
    began = time.monotonic()
    asked: set[int] = set()
    pause = _SHORTEST_PAUSE
    while (alive := find()) and (spent := time.monotonic() - began) < grace + _UNKILLABLE_AFTER:
        for pid in alive:
            if spent >= grace:
                send_signal(pid, _KILL)
            elif pid not in asked and not spare(pid):
                send_signal(pid, signal.SIGTERM)
        asked.update(alive)
        time.sleep(pause)
        pause = min(1.5 * pause, _LONGEST_PAUSE)


def reap(pid: int) -> bool:
    """Whether a process has ended; if it is a child, it is reaped."""
    if sys.platform != "win32":
        with suppress(ChildProcessError):
            return os.waitpid(pid, os.WNOHANG) != (0, 0)
    return not is_alive(pid)


def forget_child(pid: int) -> None:
    """A child was reaped, and what it left was ended."""
    if sys.platform == "win32":
        windows.close_job(pid)


def follow_child(pid: int) -> None:
    """A child was started: from here on it is known what belongs to it."""
    if sys.platform == "win32":
        windows.put_in_job(pid)


class _Tree:
    """The processes of a tree. It remembers them, so that one whose parent has ended still belongs to it."""

    def __init__(self, pid: int, variable: str) -> None:
        self._root = pid
        self._variable = variable
        self._starts: dict[int, int] = {}

    def alive(self) -> list[int]:
        """The members that run now. A member is identified by its start too, because pids are reused."""
        if not LINUX:
            return [pid for pid in (self._root, *descendants_of(self._root)) if is_alive(pid)]
        table = process_table()
        members = {pid for pid, stat in table.items() if self._is_member(pid, stat)} - {os.getpid()}
        members |= descendants_in(table, members)
        self._starts = {pid: table[pid].start for pid in members}
        return [pid for pid in members if table[pid].state not in ENDED]

    def _is_member(self, pid: int, stat: Stat) -> bool:
        if pid in self._starts:
            return stat.start == self._starts[pid]
        if self._root in (pid, stat.session, stat.group):
            return True
        return bool(self._variable) and linux.has_variable(pid, self._variable)

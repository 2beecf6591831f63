"""The few things asked of the kernel that Python has no word for. Each is a no-op where it does not exist."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)

FATAL_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL") if hasattr(signal, name)
)

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Have this process killed when the one that started it ends."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def allow_tracing() -> None:
    """Let any process of this user attach, so that a debugger started beside us may read the stacks."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


def hold_on_fatal_signals() -> None:
    """Make libc's ``pause`` the handler of the fatal signals.

    With faulthandler enabled afterwards, a crashing thread dumps the Python stacks, re-raises, and parks at
    the very instruction that failed, where a debugger can still read its native stack.
    """
    if _libc is not None:
        pause = ctypes.cast(_libc.pause, ctypes.c_void_p)
        for number in FATAL_SIGNALS:
            _set_handler(number, pause)


def default_fatal_signals() -> None:
    """Let the fatal signals kill again."""
    if _libc is not None:
        for number in FATAL_SIGNALS:
            _set_handler(number, None)


def _set_handler(number: int, handler: ctypes.c_void_p | None) -> None:
    assert _libc is not None
    _libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    _libc.signal.restype = ctypes.c_void_p
    _libc.signal(number, handler)


def children_of(pid: int) -> list[int]:
    """The direct children of a process, whichever of its threads started them, zombies included."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return [] if sys.platform == "linux" else _children_by_psutil(pid)
    found: list[int] = []
    for thread in threads:
        try:
            found += map(int, read_small(f"/proc/{pid}/task/{thread}/children").split())
        except OSError:
            continue
    return found


def read_small(path: str) -> bytes:
    """A file of /proc that is read as a whole: in half the time that ``open`` takes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


def _children_by_psutil(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def descendants_of(pid: int) -> Iterator[int]:
    """Every process below *pid*, nearest first, as far as it can be seen now."""
    waiting = children_of(pid)
    while waiting:
        child = waiting.pop(0)
        yield child
        waiting += children_of(child)


def command_of(pid: int) -> str:
    """The command line of a process; empty when it has ended or is about to."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return "" if sys.platform == "linux" else f"process {pid}"
    return " ".join(word.decode(errors="replace") for word in words if word)


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11; ``signal 62`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""The signals that kill a process, their names, their handlers, and the stacks that a process writes."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

FATAL_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL") if hasattr(signal, name)
)

# A real-time signal, because the ordinary user signals belong to the code under test.
STACKS_SIGNAL: int | None = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else None
"""Sent to make a live process write its Python stacks; needs no GIL."""
POSITION_SIGNAL: int | None = None if STACKS_SIGNAL is None else STACKS_SIGNAL + 1
"""Sent to one thread to make it write its own stack. It reads no other thread's, so the thread may go on."""
DESCRIBE_SIGNAL: int | None = None if STACKS_SIGNAL is None else STACKS_SIGNAL + 2
"""Sent to a stalled test before it is killed, to have its main thread describe what only Python code can see."""

_WINDOWS_CRASHES = {
    0x80000003: "breakpoint", 0xC0000005: "access violation", 0xC0000006: "page error",
    0xC0000017: "no memory", 0xC000001D: "illegal instruction", 0xC0000094: "int divide by zero",
    0xC0000096: "privileged instruction", 0xC00000FD: "stack overflow", 0xC0000135: "DLL not found",
    0xC000013A: "Ctrl-C", 0xC0000374: "heap corruption", 0xC0000409: "stack buffer overrun",
}  # fmt: skip
"""NTSTATUS -> its name, as faulthandler writes it where it does."""
_NTSTATUS = 0x80000000
"""Exit codes from here on are exceptions. No other system has exit codes above 255."""

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_SYS_TGKILL = {"x86_64": 234, "aarch64": 131}.get(platform.machine())
_EXIT_WITH_FAILURE = {
    "x86_64": bytes.fromhex("bf01000000 b8e7000000 0f05"),
    "aarch64": bytes.fromhex("20008052 c80b8052 010000d4"),
}
"""Machine code of ``exit_group(1)``."""
_handlers: list[mmap.mmap] = []
"""Never unmapped: the kernel keeps their addresses."""

_SIGACTION = 256
"""More bytes than C's ``struct sigaction`` has."""


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11; ``signal 62`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_number(name: str) -> int:
    """11 for ``SIGSEGV``."""
    return signal.Signals[name].value


def signal_of_exit(exit_code: int | None) -> str:
    """The signal, or Windows exception, that an exit code stands for: ``SIGSEGV`` for -11; empty for any other end."""
    if exit_code is not None and exit_code < 0:
        return signal_name(-exit_code)
    if exit_code is None or exit_code < _NTSTATUS:
        return ""
    return _WINDOWS_CRASHES.get(exit_code, f"exception 0x{exit_code:08X}")


def worker_faults_path(directory: Path, pid: int) -> Path:
    """Where a forked worker of a test writes its stacks when it crashes."""
    return directory / f"{pid}.fault"


def ask_for_stacks(pid: int, path: Path, number: int | None = STACKS_SIGNAL, *, seconds: float = 0.5) -> str:
    """Make a process write its Python stacks to *path*, and return them once it has stopped writing. It must have
    registered the signal *number* with faulthandler: any other process dies of it. Waits at most so many *seconds*."""
    if number is None:
        return ""
    text, deadline = "", time.monotonic() + seconds
    with suppress(OSError):  # it has ended
        os.kill(pid, number)
        while time.monotonic() < deadline:
            time.sleep(0.02)
            before, text = text, path.read_text(errors="replace")
            if text and text == before:
                break
    return text


def signal_thread(pid: int, thread: int, number: int) -> bool:
    """Send a signal to one thread of another process; False where that cannot be done."""
    return _libc is not None and _SYS_TGKILL is not None and _libc.syscall(_SYS_TGKILL, pid, thread, number) == 0


def hold_on_fatal_signals() -> None:
    """Make libc's ``pause`` the handler of the fatal signals. With faulthandler enabled afterwards, a crashing thread
    dumps the Python stacks, re-raises, and stops at the instruction that failed, where a debugger can still read its
    native stack."""
    if _libc is not None:
        _set_handlers(_libc, FATAL_SIGNALS, ctypes.cast(_libc.pause, ctypes.c_void_p))


def exit_with_failure_on_signal(number: int) -> bool:
    """Have a signal end the process with the exit status 1, without running any Python; False where that is impossible.

    No function of libc does that, so the handler is a system call of our own.
    """
    code = _EXIT_WITH_FAILURE.get(platform.machine())
    if sys.platform == "win32" or _libc is None or code is None:
        return False
    with suppress(OSError):  # a hardened system maps no memory that is writable and executable
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        _handlers.append(page)
        _set_handlers(_libc, (number,), ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page))))
        return True
    return False


def default_fatal_signals() -> None:
    """Let the fatal signals kill again."""
    if _libc is not None:
        _set_handlers(_libc, FATAL_SIGNALS, None)


class FatalHandlers:
    """The fatal signals' handlers as they are now, taken away until ``put_back()``: meanwhile such a signal kills."""

    def __init__(self) -> None:
        self._saved = {number: ctypes.create_string_buffer(_SIGACTION) for number in FATAL_SIGNALS}
        if _libc is not None:
            for number, action in self._saved.items():
                _libc.sigaction(number, None, action)
        default_fatal_signals()

    def put_back(self) -> None:
        if _libc is not None:
            for number, action in self._saved.items():
                _libc.sigaction(number, action, None)


def _set_handlers(libc: ctypes.CDLL, numbers: Iterable[int], handler: ctypes.c_void_p | None) -> None:
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    for number in numbers:
        libc.signal(number, handler)

"""What the threads of a process tree are doing: computing, or waiting for what, and whether anything can wake them."""

from __future__ import annotations

import os
import platform
import signal
import struct
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pytest_rlstability.osinfo import LINUX, linux, portable
from pytest_rlstability.osinfo.fatal_signals import DESCRIBE_SIGNAL, FATAL_SIGNALS, POSITION_SIGNAL, STACKS_SIGNAL
from pytest_rlstability.osinfo.proc_records import MappedRegion
from pytest_rlstability.osinfo.processes import ENDED, members_of

_NUMBERS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 23: "select", 34: "pause", 35: "nanosleep", 42: "connect", 43: "accept",
        44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4", 202: "futex", 230: "clock_nanosleep",
        232: "epoll_wait", 247: "waitid", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4",
        72: "fcntl", 73: "flock", 128: "rt_sigtimedwait", 130: "rt_sigsuspend", 19: "readv", 20: "writev", 16: "ioctl",
        441: "epoll_pwait2", 449: "futex_waitv", 2: "open", 257: "openat",
    },
    "aarch64": {
        63: "read", 64: "write", 73: "ppoll", 72: "pselect6", 101: "nanosleep", 203: "connect", 202: "accept",
        206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 260: "wait4", 98: "futex",
        115: "clock_nanosleep", 22: "epoll_pwait", 95: "waitid", 242: "accept4", 25: "fcntl", 32: "flock",
        137: "rt_sigtimedwait", 133: "rt_sigsuspend", 65: "readv", 66: "writev", 29: "ioctl", 441: "epoll_pwait2",
        449: "futex_waitv", 56: "openat",
    },
}  # fmt: skip
_WINDOW_CHANGED = 28
_OURS = {STACKS_SIGNAL, POSITION_SIGNAL, DESCRIBE_SIGNAL}
_NOT_USERS = {32, 33, _WINDOW_CHANGED, signal.SIGINT, *FATAL_SIGNALS, *_OURS}
"""Signals that Python, readline, libc (the two below the real-time ones) or this package catch in every test."""
_SYSCALLS = _NUMBERS.get(platform.machine(), {})
_ON_A_DESCRIPTOR = (
    "read", "write", "readv", "writev", "ioctl", "recvfrom", "recvmsg", "sendto", "sendmsg", "accept", "accept4",
    "connect", "flock", "fcntl",
)  # fmt: skip
_ENDLESS = ("wait4", "waitid", "pause", "rt_sigsuspend", "open", "openat")
_TIMEOUT_AT = {"select": 4, "pselect6": 4, "ppoll": 2, "rt_sigtimedwait": 2, "epoll_pwait2": 3}
"""Which argument points to the timeout; 0 means none."""
_FUTEX_WAITS = (0, 6, 9, 13)
_FUTEX_LOCK_PI = 6
_FUTEX_PRIVATE = 128
_FUTEX_CLOCK_REALTIME = 256
_TIMESPEC = struct.Struct("qq")
MULTIPLEXERS = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2")
SLEEPS = ("nanosleep", "clock_nanosleep")
STOPPED = ("T", "t")
"""States of a thread that a signal or a debugger has stopped."""

_ALARM: int = getattr(signal, "SIGALRM", 0)


@dataclass(frozen=True)
class ThreadState:
    """One thread at one moment. ``call`` is the system call it is in: ``""`` when it computes, ``?`` if unknown."""

    pid: int
    thread: int
    name: str
    state: str
    ticks: int
    switches: int
    call: str = "?"
    descriptor: int | None = None
    endless: bool = False
    futex: int | None = None
    """The address of the lock that it waits for, if other processes could share that lock."""
    until: float | None = None
    """When the wait ends by itself, by ``time.monotonic``; None: never, or unknown."""
    schedule: bytes = b""
    """How long and how often it has run, as the kernel counts it. It does not change while the thread sleeps."""

    @property
    def asleep(self) -> bool:
        return self.state == "S"

    @property
    def untimed(self) -> bool:
        """Whether the wait has no timeout."""
        return self.endless or self.call in _ON_A_DESCRIPTOR

    @property
    def mark(self) -> tuple[int, int, int, int]:
        """What changes when the thread gets the processor."""
        return (self.pid, self.thread, self.ticks, self.switches)


@dataclass(frozen=True)
class TreeState:
    """Every thread of a process and its descendants at one moment."""

    threads: tuple[ThreadState, ...] = ()

    @property
    def activity(self) -> frozenset[tuple[int, int, int, int]]:
        """What changes when anything in the tree gets the processor."""
        return frozenset(thread.mark for thread in self.threads)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(thread.pid for thread in self.threads))

    def of(self, pid: int) -> tuple[ThreadState, ...]:
        return tuple(thread for thread in self.threads if thread.pid == pid)


def look_at_tree(pid: int, members: Iterable[int] | None = None, before: TreeState | None = None) -> TreeState:
    """The threads of *pid* and of all its descendants (*members*, if they are known already), without zombies. Threads
    that have slept since the look *before* are not read again."""
    asleep = {} if before is None else {(state.pid, state.thread): state for state in before.threads if state.asleep}
    processes = members_of(pid) if members is None else members
    return TreeState(tuple(thread for process in processes for thread in look_at_process(process, asleep)))


def look_at_process(pid: int, asleep: Mapping[tuple[int, int], ThreadState] | None = None) -> list[ThreadState]:
    if not LINUX:
        return _look_elsewhere(pid)
    known = asleep or {}
    states = (_look_at_thread(pid, thread, known.get((pid, thread))) for thread in linux.threads_of(pid))
    return [state for state in states if state is not None and state.state not in ENDED]


def _look_elsewhere(pid: int) -> list[ThreadState]:
    """What other systems show: the processor time of each thread, or of the process as if it were one thread."""
    name, ticks, switches = portable.activity(pid) or ("", 0, 0)
    if threads := portable.threads_of(pid):
        return [ThreadState(pid, thread, name, "?", used, 0) for thread, used in sorted(threads.items())]
    return [ThreadState(pid, pid, name, "?", ticks, switches)] if name else []


def _look_at_thread(pid: int, thread: int, before: ThreadState | None) -> ThreadState | None:
    schedule = linux.schedule(pid, thread)  # first: if the thread runs during this look, the next one sees it
    if before is not None and schedule and schedule == before.schedule:
        return before
    stat, status = linux.stat(pid, thread), linux.status(pid, thread)
    if stat is None or status is None:
        return None
    wait = _wait_of(pid, thread)
    return ThreadState(pid, thread, stat.name, stat.state, stat.ticks, status.switches, *wait, schedule)


def _wait_of(pid: int, thread: int) -> tuple[str, int | None, bool, int | None, float | None]:
    """The system call, its descriptor, whether it waits without a timeout, the address of a shared lock, and when the
    wait ends."""
    words = linux.system_call(pid, thread)
    if words is None:
        return "?", None, False, None, None
    if not words:
        return "", None, False, None, None
    number, *arguments = words
    call = _SYSCALLS.get(number, f"syscall {number}")
    if call in ("select", "pselect6") and arguments[0] == 0 and arguments[4]:
        call = "nanosleep"  # that is what a select with a timeout and no descriptors does
    descriptor = _signed(arguments[0]) if call in _ON_A_DESCRIPTOR or call.startswith("epoll") else None
    futex = arguments[0] if call == "futex" and not arguments[1] & _FUTEX_PRIVATE else None
    endless = _is_endless(call, arguments)
    return call, descriptor, endless, futex, None if endless else _end_of_wait(pid, number, arguments)


def _end_of_wait(pid: int, number: int, arguments: list[int]) -> float | None:
    """When a wait with a timeout ends, by ``time.monotonic``."""
    call, now = _SYSCALLS.get(number, ""), time.monotonic()
    if call in ("poll", "epoll_wait", "epoll_pwait"):
        return now + _signed(arguments[2 if call == "poll" else 3]) / 1000
    place = {"nanosleep": 0, "clock_nanosleep": 2, "futex": 3, **_TIMEOUT_AT}.get(call)
    value = None if place is None else linux.read_memory(pid, arguments[place], _TIMESPEC.size)
    if value is None:
        return None
    seconds, rest = _TIMESPEC.unpack(value)
    timeout = seconds + rest / (1e6 if call == "select" else 1e9)
    if sys.platform == "win32":
        raise NotImplementedError
    absolute = _is_absolute(call, arguments)
    if absolute is None:
        return now + float(timeout)
    return float(timeout) if absolute == time.CLOCK_MONOTONIC else now + float(timeout) - time.time()


def _is_absolute(call: str, arguments: list[int]) -> int | None:
    """The clock by which a timeout is a point in time; None if it is a duration."""
    if sys.platform == "win32":
        raise NotImplementedError
    if call == "clock_nanosleep":
        return arguments[0] if arguments[1] & 1 else None
    if call == "futex" and arguments[1] & 0x7F != 0:  # all but FUTEX_WAIT
        realtime = arguments[1] & _FUTEX_CLOCK_REALTIME or arguments[1] & 0x7F == _FUTEX_LOCK_PI
        return time.CLOCK_REALTIME if realtime else time.CLOCK_MONOTONIC
    return None


def _is_endless(call: str, arguments: list[int]) -> bool:
    if call == "futex":
        return arguments[1] & 0x7F in _FUTEX_WAITS and arguments[3] == 0
    if call in _ENDLESS:
        return True
    if call in _TIMEOUT_AT:
        return arguments[_TIMEOUT_AT[call]] == 0
    if call in ("poll", "epoll_wait", "epoll_pwait"):
        return _signed(arguments[2 if call == "poll" else 3]) < 0
    return False


def _signed(number: int) -> int:
    low = number & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low


def waits_for_processes(thread: ThreadState) -> bool:
    """Whether a thread waits for a named semaphore: multiprocessing makes its locks of those."""
    if thread.futex is None:
        return False
    regions = linux.mappings(thread.pid, b"/sem.")
    return any(region.start <= thread.futex < region.end for region in regions)


def can_be_woken(tree: TreeState, *, alarm_is_ours: bool, ours: Collection[int] = ()) -> bool:
    """Whether something other than the tree's own threads could end one of their waits for locks: another process that
    shares the lock's memory, or a timer that a process has set. The handlers of the signals *ours* wake nothing."""
    aside = {*_NOT_USERS, *ours, *([_ALARM] if alarm_is_ours else [])}
    if any(_has_timer(pid, aside) for pid in tree.pids):
        return True
    return any(_is_shared(thread, tree) for thread in tree.threads if thread.futex is not None)


def _has_timer(pid: int, aside: Collection[int | None]) -> bool:
    """Whether a timer or a signal that is not *aside* may wake the process. An interval timer cannot be seen from
    outside, but a handler for its signal can, and so can one for a signal that other processes send."""
    timers, status = linux.has_timers(pid), linux.status(pid)
    if timers or timers is None or status is None:
        return bool(timers)
    caught = status.signals(b"SigCgt")
    return any(_has_signal(caught, number) for number in range(1, 65) if number not in aside)


def catches_signal(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, as far as can be seen."""
    status = linux.status(pid)
    return status is None or _has_signal(status.signals(b"SigCgt"), number)


def _has_signal(signals: int, number: int) -> bool:
    return bool(signals >> (number - 1) & 1)


def _is_shared(thread: ThreadState, tree: TreeState) -> bool:
    """Whether the lock is in memory that a process outside the tree maps too."""
    assert thread.futex is not None
    regions = list(linux.mappings(thread.pid))
    for region in regions:
        if region.start <= thread.futex < region.end:
            return region.is_shared and _is_mapped_elsewhere(region, thread.pid, tree.pids)
    return not regions  # they cannot be read


def _is_mapped_elsewhere(region: MappedRegion, pid: int, members: Iterable[int]) -> bool:
    """Whether a process outside the tree maps the region too. Ancestors do not count: they only wait for its end."""
    known = {*members, os.getpid()}
    while pid > 1:
        stat = linux.stat(pid)
        pid = 0 if stat is None else stat.parent
        known.add(pid)
    file = b" %b %b " % (region.device, region.inode)
    return any(other.is_shared for pid in linux.pids() if pid not in known for other in linux.mappings(pid, file))


def held_signal(pid: int) -> int | None:
    """The fatal signal that holds a thread of *pid* in libc's ``pause``. A signal is blocked while its handler runs."""
    for thread in linux.threads_of(pid):
        status = linux.status(pid, thread)
        blocked = 0 if status is None else status.signals(b"SigBlk")
        held = [int(number) for number in FATAL_SIGNALS if _has_signal(blocked, number)]
        if not held or len(held) == len(FATAL_SIGNALS):  # a thread that blocks them all blocks every signal
            continue
        call, _, endless, *_ = _wait_of(pid, thread)
        unseen = call == "?" or not _SYSCALLS
        if blocked == 1 << (held[0] - 1) if unseen else endless and call in ("pause", "ppoll"):
            return held[0]
    return None

"""What a process tree is doing, thread by thread, from /proc. Of a thread that has not run since the last look,
no more is read than that."""

from __future__ import annotations

import os
import platform
import re
import signal
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_rlstability.isolation.kernel import FATAL_SIGNALS, children_of, command_of, descendants_of, read_small

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
_USERS_SIGNALS = [getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2", "SIGIO") if hasattr(signal, name)]
_SYSCALLS = _NUMBERS.get(platform.machine(), {})
_ON_A_DESCRIPTOR = (
    "read", "write", "readv", "writev", "ioctl", "recvfrom", "recvmsg", "sendto", "sendmsg", "accept", "accept4",
    "connect", "flock", "fcntl",
)  # fmt: skip
_ENDLESS = ("wait4", "waitid", "pause", "rt_sigsuspend", "open", "openat")
_TIMEOUT_AT = {"select": 4, "pselect6": 4, "ppoll": 2, "rt_sigtimedwait": 2, "epoll_pwait2": 3}
"""Which argument leads to a limit, if there is one."""
_FUTEX_WAITS = (0, 6, 9, 13)
_FUTEX_PRIVATE = 128
_HELPERS = ("resource_tracker import main", "multiprocessing.forkserver")


@dataclass(frozen=True)
class ThreadState:
    """One thread at one moment. ``call`` is the system call it sits in: ``""`` when it computes, ``?`` unknown."""

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
    """Where the lock lies that it waits for, if processes that share the memory could wake it too."""
    schedule: bytes = b""
    """How long and how often it has run, as the kernel counts it: the same as long as it stays asleep."""

    @property
    def asleep(self) -> bool:
        return self.state == "S"

    @property
    def untimed(self) -> bool:
        """Whether the wait ends only when what it waits for comes."""
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
    """The threads of *pid* and of all its descendants (*members*, if they are known already), zombies left out.
    What *before* knew of threads that still sleep is taken from there."""
    asleep = {} if before is None else {(state.pid, state.thread): state for state in before.threads if state.asleep}
    found: list[ThreadState] = []
    for member in members_of(pid) if members is None else members:
        found += look_at_process(member, asleep)
    return TreeState(tuple(found))


def members_of(pid: int, strangers: Collection[int] | None = None) -> list[int]:
    """*pid*, its descendants, and those of its descendants whose own parent died: they fell to its keeper. So did the
    *strangers*, other tests' processes; where those are not known, whoever leads a session is taken for one."""
    members = [pid, *descendants_of(pid)]
    keeper, _ = _family(pid)
    for orphan in children_of(keeper) if keeper > 1 else ():
        session = _family(orphan)[1]
        is_stranger = session == orphan if strangers is None else orphan in strangers
        if orphan not in members and session and not is_stranger:
            members += [orphan, *descendants_of(orphan)]
    return members


def _family(pid: int) -> tuple[int, int]:
    """Parent and session of a process; zeros when it has ended."""
    try:
        fields = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return 0, 0
    return int(fields[1]), int(fields[3])


def ticks_of(pid: int) -> int:
    """The processor time of a process and its ended children, in ticks of 10 ms; one file to read."""
    try:
        fields = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return 0
    return sum(int(field) for field in fields[11:15])


def delay_of(pid: int) -> float:
    """Seconds the first thread of a process was ready to run, and another had the processor."""
    try:
        return int(read_small(f"/proc/{pid}/schedstat").split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def look_at_process(pid: int, asleep: Mapping[tuple[int, int], ThreadState] | None = None) -> list[ThreadState]:
    if sys.platform != "linux":
        return _look_by_psutil(pid)
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    known = asleep or {}
    states = (_look_at_thread(pid, thread, known.get((pid, thread))) for thread in map(int, threads))
    return [state for state in states if state is not None and state.state not in "ZX"]


def _look_at_thread(pid: int, thread: int, before: ThreadState | None) -> ThreadState | None:
    base = f"/proc/{pid}/task/{thread}"
    try:
        schedule = _schedule(base)  # first: if the thread runs meanwhile, the next look sees it
        if before is not None and schedule and schedule == before.schedule:
            return before
        head, _, tail = read_small(f"{base}/stat").rpartition(b")")
        status = read_small(f"{base}/status")
    except OSError:
        return None
    fields = tail.split()
    switches = sum(int(number) for number in re.findall(rb"ctxt_switches:\s*(\d+)", status))
    call, descriptor, endless, futex = _read_syscall(base)
    return ThreadState(
        pid=pid,
        thread=thread,
        name=head.partition(b"(")[2].decode(errors="replace"),
        state=fields[0].decode(),
        ticks=int(fields[11]) + int(fields[12]),
        switches=switches,
        call=call,
        descriptor=descriptor,
        endless=endless,
        futex=futex,
        schedule=schedule,
    )


def _schedule(base: str) -> bytes:
    try:
        schedule = read_small(f"{base}/schedstat")
    except OSError:
        return b""
    return b"" if schedule.startswith(b"0 0 0") else schedule  # a kernel that does not count


def _read_syscall(base: str) -> tuple[str, int | None, bool, int | None]:
    """The call, the descriptor it is about, whether it waits without a timeout, and for which shared lock."""
    try:
        words = read_small(f"{base}/syscall").decode().split()
    except OSError:
        return "?", None, False, None
    if not words or words[0] in ("running", "-1"):
        return "", None, False, None
    call = _SYSCALLS.get(int(words[0]), f"syscall {words[0]}")
    arguments = [int(word, 16) for word in words[1:7]]
    if call in ("select", "pselect6") and arguments[0] == 0 and arguments[4]:
        call = "nanosleep"  # no descriptors: how time.sleep does it before Python 3.11
    descriptor = _signed(arguments[0]) if call in _ON_A_DESCRIPTOR or call.startswith("epoll") else None
    futex = arguments[0] if call == "futex" and not arguments[1] & _FUTEX_PRIVATE else None
    return call, descriptor, _is_endless(call, arguments), futex


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


def _look_by_psutil(pid: int) -> list[ThreadState]:
    """Where there is no /proc: the processor time of the whole process, and nothing about what it waits for."""
    import psutil

    try:
        process = psutil.Process(pid)
        times, switches = process.cpu_times(), process.num_ctx_switches()
    except psutil.Error:
        return []
    ticks = int((times.user + times.system) * 100)
    return [ThreadState(pid, pid, process.name(), "?", ticks, switches.voluntary + switches.involuntary)]


def descriptor_target(pid: int, descriptor: int) -> str:
    """``pipe:[123]``, ``socket:[456]``, a path; ``?`` when it cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return "?"


def can_be_woken(tree: TreeState, *, alarm_is_ours: bool) -> bool:
    """Whether something beyond the tree's own threads could end one of their waits for locks: another process that
    shares the lock's memory, or a timer the process has set itself."""
    if any(_has_timer(pid, alarm_is_ours) for pid in tree.pids):
        return True
    return any(_is_shared(thread, tree) for thread in tree.threads if thread.futex is not None)


def _has_timer(pid: int, alarm_is_ours: bool) -> bool:
    """An interval timer cannot be seen from outside, but a handler for its signal can; so can one for a signal that has
    no other use than to be sent by somebody."""
    try:
        if Path(f"/proc/{pid}/timers").read_text().strip():
            return True
    except OSError:
        return False
    caught = _signals(f"/proc/{pid}/status", "SigCgt")
    waking = [*_USERS_SIGNALS, *([] if alarm_is_ours else [signal.SIGALRM])]
    return any(caught >> (number - 1) & 1 for number in waking)


def _is_shared(thread: ThreadState, tree: TreeState) -> bool:
    """Whether the lock lies in memory that a process outside the tree maps as well."""
    assert thread.futex is not None
    try:
        maps = Path(f"/proc/{thread.pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return True
    for line in maps:
        span, permissions, _, device, inode, *_ = line.split()
        start, _, end = span.partition("-")
        if int(start, 16) <= thread.futex < int(end, 16):
            return permissions.endswith("s") and _is_mapped_elsewhere(f" {device} {inode} ", thread.pid, tree.pids)
    return False


def _is_mapped_elsewhere(file: str, pid: int, members: Iterable[int]) -> bool:
    """Those the tree descends from inherited it and wait for its end: they do not count."""
    known = {*members, os.getpid()}
    while pid > 1:
        pid = _family(pid)[0]
        known.add(pid)
    for other in os.listdir("/proc"):
        if other.isdigit() and int(other) not in known:
            try:
                maps = Path(f"/proc/{other}/maps").read_text(errors="replace")
            except OSError:
                continue
            if any(file in line and line.split()[1].endswith("s") for line in maps.splitlines() if file in line):
                return True
    return False


def held_signal(pid: int) -> int | None:
    """The fatal signal at which a thread of *pid* is held in libc's ``pause``: it is blocked while its handler runs."""
    for thread in look_at_process(pid):
        if thread.call in ("pause", "ppoll") and thread.endless:
            blocked = _signals(f"/proc/{pid}/task/{thread.thread}/status", "SigBlk")
            held = [number for number in FATAL_SIGNALS if blocked >> (number - 1) & 1]
            if held and len(held) < len(FATAL_SIGNALS):  # who blocks them all blocks everything
                return int(held[0])
    return None


def _signals(status: str, name: str) -> int:
    """The signals in the set *name* of a ``status`` file, a bit each."""
    try:
        found = re.search(rf"^{name}:\s*([0-9a-f]+)", Path(status).read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 0 if found is None else int(found[1], 16)


def is_helper(pid: int) -> bool:
    """Whether a process only serves the test's: one of multiprocessing's own."""
    command = command_of(pid)
    return any(word in command for word in _HELPERS)

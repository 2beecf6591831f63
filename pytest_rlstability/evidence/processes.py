"""What a process tree is doing, thread by thread, from /proc: half a millisecond for a training process."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_rlstability.isolation.kernel import command_of, descendants_of

_NUMBERS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 23: "select", 34: "pause", 35: "nanosleep", 42: "connect", 43: "accept",
        44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4", 202: "futex", 230: "clock_nanosleep",
        232: "epoll_wait", 247: "waitid", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4",
        72: "fcntl", 73: "flock", 128: "rt_sigtimedwait", 130: "rt_sigsuspend",
    },
    "aarch64": {
        63: "read", 64: "write", 73: "ppoll", 72: "pselect6", 101: "nanosleep", 203: "connect", 202: "accept",
        206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 260: "wait4", 98: "futex",
        115: "clock_nanosleep", 22: "epoll_pwait", 95: "waitid", 242: "accept4", 25: "fcntl", 32: "flock",
        137: "rt_sigtimedwait", 133: "rt_sigsuspend",
    },
}  # fmt: skip
_SYSCALLS = _NUMBERS.get(platform.machine(), {})
_ON_A_DESCRIPTOR = (
    "read", "write", "recvfrom", "recvmsg", "sendto", "sendmsg", "accept", "accept4", "connect", "flock", "fcntl",
)  # fmt: skip
_FUTEX_WAITS = (0, 9)


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

    @property
    def asleep(self) -> bool:
        return self.state == "S"


@dataclass(frozen=True)
class TreeState:
    """Every thread of a process and its descendants at one moment."""

    threads: tuple[ThreadState, ...] = ()

    @property
    def activity(self) -> frozenset[tuple[int, int, int, int]]:
        """What changes when anything in the tree gets the processor."""
        return frozenset((thread.pid, thread.thread, thread.ticks, thread.switches) for thread in self.threads)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(thread.pid for thread in self.threads))

    def of(self, pid: int) -> tuple[ThreadState, ...]:
        return tuple(thread for thread in self.threads if thread.pid == pid)


def look_at_tree(pid: int) -> TreeState:
    """The threads of *pid* and of all its descendants, zombies left out."""
    found: list[ThreadState] = []
    for member in (pid, *descendants_of(pid)):
        found += look_at_process(member)
    return TreeState(tuple(found))


def look_at_process(pid: int) -> list[ThreadState]:
    if sys.platform != "linux":
        return _look_by_psutil(pid)
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    states = (_look_at_thread(pid, int(thread)) for thread in threads)
    return [state for state in states if state is not None and state.state not in "ZX"]


def _look_at_thread(pid: int, thread: int) -> ThreadState | None:
    base = f"/proc/{pid}/task/{thread}"
    try:
        with open(f"{base}/stat", "rb") as file:
            head, _, tail = file.read().rpartition(b")")
        with open(f"{base}/status", "rb") as file:
            status = file.read()
    except OSError:
        return None
    fields = tail.split()
    switches = sum(int(number) for number in re.findall(rb"ctxt_switches:\s*(\d+)", status))
    call, descriptor, endless = _read_syscall(base)
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
    )


def _read_syscall(base: str) -> tuple[str, int | None, bool]:
    """The call, the descriptor it is about, and whether it waits without a timeout."""
    try:
        with open(f"{base}/syscall") as file:
            words = file.read().split()
    except OSError:
        return "?", None, False
    if not words or words[0] in ("running", "-1"):
        return "", None, False
    call = _SYSCALLS.get(int(words[0]), f"syscall {words[0]}")
    arguments = [int(word, 16) for word in words[1:7]]
    descriptor = _signed(arguments[0]) if call in _ON_A_DESCRIPTOR or call.startswith("epoll") else None
    return call, descriptor, _is_endless(call, arguments)


def _is_endless(call: str, arguments: list[int]) -> bool:
    if call == "futex":
        return arguments[1] & 0x7F in _FUTEX_WAITS and arguments[3] == 0
    if call in ("wait4", "waitid"):
        return True
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


def maps_shared_memory(pid: int) -> bool:
    """Whether another process could wake this one through memory they share."""
    try:
        return "/dev/shm/" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False


def describe_wait(thread: ThreadState, tree: Iterable[int]) -> str:
    """What a thread waits for, in words: ``reads pipe:[88], whose other end pid 7 (python env.py) holds``."""
    if thread.state == "T" or thread.state == "t":
        return "stopped by a signal"
    if thread.call == "":
        return "computing"
    if thread.call == "futex":
        return "waits for a lock" + ("" if thread.endless else ", with a timeout")
    if thread.call in ("wait4", "waitid"):
        return "waits for a child process to end"
    if thread.call in ("nanosleep", "clock_nanosleep"):
        return "sleeps"
    if thread.descriptor is None:
        return f"in {thread.call}"
    target = descriptor_target(thread.pid, thread.descriptor)
    return f"in {thread.call} on {target}{_peer(thread, target, tree)}"


def _peer(thread: ThreadState, target: str, tree: Iterable[int]) -> str:
    """Who holds the other end, where that can be told."""
    if target.startswith("pipe:"):
        for pid in tree:
            if pid != thread.pid and target in _targets(pid):
                return f", whose other end pid {pid} ({command_of(pid)[:60]}) holds"
        return ", whose other end no process of the test holds"
    if target.startswith("socket:"):
        return _socket_peer(thread.pid, thread.descriptor)
    return ""


def _targets(pid: int) -> set[str]:
    try:
        return {descriptor_target(pid, int(name)) for name in os.listdir(f"/proc/{pid}/fd")}
    except OSError:
        return set()


def _socket_peer(pid: int, descriptor: int | None) -> str:
    import psutil

    try:
        connections = psutil.Process(pid).net_connections(kind="inet")
    except psutil.Error:
        return ""
    for connection in connections:
        if connection.fd == descriptor:
            if not connection.raddr:
                return f" (listening on {connection.laddr.ip}:{connection.laddr.port})"
            host, port = connection.raddr
            return f" (peer {host}:{port}{_owner_of(host, port)})"
    return ""


def _owner_of(host: str, port: int) -> str:
    """The process of this machine that serves that address."""
    import psutil

    try:
        for connection in psutil.net_connections(kind="inet"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                states = look_at_process(connection.pid)
                doing = describe_wait(states[0], ()) if states and states[0].descriptor is None else ""
                command = command_of(connection.pid)[:60]
                return f", served by pid {connection.pid} ({command})" + (f", which {doing}" if doing else "")
    except psutil.Error:
        pass
    return ""

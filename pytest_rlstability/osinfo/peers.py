"""What a waiting thread waits for, in words: the other end of its pipe or socket, and what that one is doing."""

from __future__ import annotations

import os
import re
import socket
import struct
import sys
from collections.abc import Iterable

from pytest_rlstability.evidence.processes import ThreadState, TreeState, descriptor_target, look_at_process
from pytest_rlstability.isolation.kernel import command_of
from pytest_rlstability.signals.proc import links_of

_SLEEPS = ("nanosleep", "clock_nanosleep")
_MULTIPLEXERS = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2")
_FILE_LOCKS = ("flock", "fcntl")
_OPENS = ("open", "openat")
_STOPPED = "is stopped by a signal"
_COMMAND_LENGTH = 60
_MOST_HOLDERS = 3


def describe_wait(thread: ThreadState, tree: Iterable[int]) -> str:
    """``in read on pipe:[88], at whose other end is pid 7 (python env.py), which sleeps``"""
    if thread.state in ("T", "t"):
        return "stopped by a signal"
    if thread.call in _MULTIPLEXERS:
        return f"{_doing(thread)}{_watched(thread, tree)}"
    if thread.descriptor is None:
        return _doing(thread)
    target = descriptor_target(thread.pid, thread.descriptor)
    if thread.call in _FILE_LOCKS:
        return f"waits for a lock on {target}{_lock_holder(thread.pid, thread.descriptor, tree)}"
    return f"in {thread.call} on {target}{_other_end(thread.pid, thread.descriptor, target, tree)}"


def waits_outside(tree: TreeState, main: int) -> bool:
    """Whether the thread *main* waits for a child, or for a pipe or socket whose other end its own process does not
    hold: no other thread of it can end that."""
    thread = next((thread for thread in tree.threads if thread.thread == main), None)
    if thread is None:
        return False
    if thread.call in ("wait4", "waitid"):
        return True
    if thread.descriptor is None or not thread.untimed:
        return False
    target = descriptor_target(thread.pid, thread.descriptor)
    own = links_of(thread.pid)
    if target.startswith("pipe:"):
        return own.count(target) == 1
    if target.startswith("socket:"):
        peer = unix_peer(int(target[8:-1]))
        return f"socket:[{peer}]" not in own if peer else _is_connected_outside(thread.pid, thread.descriptor)
    return False


def _is_connected_outside(pid: int, descriptor: int) -> bool:
    """Whether an internet socket's peer is not a socket of the same process."""
    import psutil

    try:
        connections = psutil.Process(pid).net_connections(kind="inet")
    except psutil.Error:
        return False
    peers = [connection.raddr for connection in connections if connection.fd == descriptor and connection.raddr]
    return bool(peers) and all(connection.laddr != peers[0] for connection in connections)


def _doing(thread: ThreadState) -> str:
    """The same without a look at the other end."""
    if thread.state in ("T", "t"):
        return _STOPPED
    if thread.call == "":
        return "computes"
    if thread.call == "?":
        return "does what cannot be seen"
    if thread.call.startswith("futex"):
        return "waits for a lock" + ("" if thread.endless else ", with a timeout")
    if thread.call in ("wait4", "waitid"):
        return "waits for a child process to end"
    if thread.call in _SLEEPS:
        return "sleeps"
    if thread.call in _OPENS:
        return "opens a file that does not open: a named pipe, and nobody has opened its other end"
    if thread.call in _MULTIPLEXERS:
        return "waits for input or output" + ("" if thread.endless else ", with a timeout")
    if thread.descriptor is not None:
        return f"is in {thread.call} on {descriptor_target(thread.pid, thread.descriptor)}"
    return f"is in {thread.call}"


def _watched(thread: ThreadState, tree: Iterable[int]) -> str:
    """What an epoll instance waits for; poll and select keep theirs in the process's memory."""
    if thread.descriptor is None:
        return ""
    try:
        with open(f"/proc/{thread.pid}/fdinfo/{thread.descriptor}") as file:
            descriptors = [int(number) for number in re.findall(r"^tfd:\s*(\d+)", file.read(), re.MULTILINE)]
    except OSError:
        return ""
    targets = [(number, descriptor_target(thread.pid, number)) for number in descriptors]
    parts = [f"{target}{_other_end(thread.pid, number, target, tree)}" for number, target in targets[:3]]
    return f" on {'; '.join(parts)}" if parts else ""


def _other_end(pid: int, descriptor: int, target: str, tree: Iterable[int]) -> str:
    if target.startswith("pipe:"):
        return _holders(pid, target, tree)
    if target.startswith("socket:"):
        peer = unix_peer(int(target[8:-1]))
        return _holders(pid, f"socket:[{peer}]", tree) if peer else _internet_peer(pid, descriptor)
    return ""


def _lock_holder(pid: int, descriptor: int, tree: Iterable[int]) -> str:
    """Who has the lock on a file: the kernel lists them by the file's device and inode."""
    try:
        file = os.stat(f"/proc/{pid}/fd/{descriptor}")
        with open("/proc/locks") as locks:
            lines = [line.split() for line in locks]
    except OSError:
        return ""
    name = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    holders = [int(fields[4]) for fields in lines if fields[1] != "->" and fields[5] == name and fields[4] != "-1"]
    words = [f"{process_name(holder, next(iter(tree), None))}, which {_what(holder)}" for holder in holders]
    return f", held by {' and '.join(words[:_MOST_HOLDERS])}" if words else ""


def _holders(pid: int, target: str, tree: Iterable[int]) -> str:
    """Who has the other end: those of the test that do (a fork inherits it), a stopped one first, else any."""
    members = list(tree)
    holders = [other for other in members if other != pid and target in links_of(other)]
    if not holders and target in links_of(pid):
        return ", whose other end only this process holds"
    holders = holders or [other for other in _all_processes() if other != pid and target in links_of(other)][:1]
    if not holders:
        return ", whose other end nobody holds"
    words = sorted((f"{process_name(other, members[0])}, which {_what(other)}" for other in holders), key=_unstopped)
    return f", at whose other end is {' and '.join(words[:_MOST_HOLDERS])}"


def _unstopped(words: str) -> bool:
    return not words.endswith(_STOPPED)


def process_name(pid: int, test: int | None) -> str:
    """``pid 7 (python env.py)``; a fork of the test's process has its command line, and none of its own."""
    command = command_of(pid)
    if test is not None and command and command == command_of(test):
        return f"pid {pid} (the test itself)" if pid == test else f"pid {pid} (forked from the test)"
    return f"pid {pid} ({command[:_COMMAND_LENGTH] or 'ended'})"


def _all_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if sys.platform == "linux" else []


def _what(pid: int) -> str:
    states = look_at_process(pid)
    return _doing(states[0]) if states else "has ended"


def unix_peer(inode: int) -> int | None:
    """The inode of the socket a Unix socket is connected to; not in /proc, but the kernel tells who asks."""
    if sys.platform != "linux":
        return None
    sock_diag_by_family, request_flag, show_peer, peer_attribute = 20, 1, 4, 2
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, inode, show_peer, 0xFFFFFFFF, 0xFFFFFFFF)
    header = struct.pack("=IHHII", 16 + len(request), sock_diag_by_family, request_flag, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diagnosis:
            diagnosis.settimeout(1.0)
            diagnosis.send(header + request)
            answer = diagnosis.recv(4096)
    except OSError:
        return None
    if len(answer) < 32 or struct.unpack_from("=H", answer, 4)[0] != sock_diag_by_family:
        return None
    offset = 32
    while offset + 4 <= len(answer):
        length, kind = struct.unpack_from("=HH", answer, offset)
        if kind == peer_attribute and length >= 8:
            return int(struct.unpack_from("=I", answer, offset + 4)[0])
        offset += max(4, (length + 3) & ~3)
    return None


def _internet_peer(pid: int, descriptor: int) -> str:
    import psutil

    try:
        connections = psutil.Process(pid).net_connections(kind="inet")
    except psutil.Error:
        return ""
    for connection in connections:
        if connection.fd == descriptor:
            if not connection.raddr:
                return f" (listening on {connection.laddr.ip}:{connection.laddr.port})" if connection.laddr else ""
            host, port = connection.raddr
            return f" (peer {host}:{port}{_owner_of(pid, port)})"
    return ""


def _owner_of(pid: int, port: int) -> str:
    """The process of this machine that serves that address."""
    import psutil

    try:
        owners = {
            one.pid for one in psutil.net_connections(kind="inet") if one.laddr and one.laddr.port == port and one.pid
        }
    except psutil.Error:
        return ""
    if not owners:
        return ""
    owner = next((other for other in owners if other != pid), pid)
    if owner == pid:
        return ", served by this process itself"
    return f", served by {process_name(owner, None)}, which {_what(owner)}"

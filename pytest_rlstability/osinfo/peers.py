"""Describes what a thread waits for: the other end of its pipe or socket, and what the process there is doing."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterable

from pytest_rlstability.osinfo.databases import locked_databases
from pytest_rlstability.osinfo.linux import (
    GONE,
    descriptor_target,
    file_locks,
    links_of,
    pids,
    polled_by,
    watched_by,
)
from pytest_rlstability.osinfo.portable import connections_of
from pytest_rlstability.osinfo.processes import is_fork_server, process_name
from pytest_rlstability.osinfo.stack_waits import INPUT
from pytest_rlstability.osinfo.threads import (
    MULTIPLEXERS,
    SLEEPS,
    STOPPED,
    ThreadState,
    TreeState,
    look_at_process,
    waits_for_processes,
)

_FILE_LOCKS = ("flock", "fcntl")
_DOING = {
    "": "computes",
    "?": "is in a state that cannot be read",
    INPUT: "waits for input or output",
    **dict.fromkeys(("wait4", "waitid"), "waits for a child process to end"),
    **dict.fromkeys(SLEEPS, "sleeps"),
    **dict.fromkeys(("open", "openat"), "is blocked opening a FIFO: no process has opened its other end"),
}
_IS_STOPPED = "is stopped by a signal"
_ONLY_ITSELF = ", whose other end only this process holds"
_MOST_HOLDERS = 3


def describe_wait(thread: ThreadState, tree: Iterable[int]) -> str:
    """``in read on pipe:[88], at whose other end is pid 7 (python env.py), which sleeps``"""
    if thread.state in STOPPED:
        return "stopped by a signal"
    if waits_for_worker(thread, tree):
        return "waits for a worker of multiprocessing's fork server to end"
    if thread.call in MULTIPLEXERS:
        return f"{_doing(thread)}{_watched(thread, tree)}"
    if thread.call in SLEEPS:
        return _doing(thread) + "".join(f"; {line}" for line in describe_databases(thread.pid, tree))
    if waits_for_processes(thread):
        return "waits for a lock that processes share, as multiprocessing's are"
    if thread.descriptor is None:
        return _doing(thread)
    target = descriptor_target(thread.pid, thread.descriptor)
    if thread.call in _FILE_LOCKS:
        return f"waits for a lock on {target}{_lock_holder(thread.pid, thread.descriptor, tree)}"
    return f"in {thread.call} on {target}{_other_end(thread.pid, thread.descriptor, target, tree)}"


def describe_databases(pid: int, tree: Iterable[int]) -> list[str]:
    """``the SQLite database /tmp/x.db is locked by pid 7 (python writer.py), which sleeps``"""
    lines = []
    for path, holders in locked_databases(pid):
        itself = "another connection of this process"
        who = itself if holders == [pid] else _described(holders, next(iter(tree), None))
        lines.append(f"the SQLite database {path} is locked by {who}")
    return lines


def waits_for_worker(thread: ThreadState, tree: Iterable[int]) -> bool:
    """Whether a thread waits, without a timeout, for a fork server to say that a worker has ended. That is all that the
    pipe to it is for."""
    if not thread.endless or thread.call not in ("poll", "ppoll"):
        return False
    watched = {descriptor_target(thread.pid, number) for number in polled_by(thread.pid, thread.thread)}
    of_servers = {target for pid in tree if is_fork_server(pid) for target in links_of(pid)} if watched else set()
    return bool(watched) and all(target.startswith("pipe:") and target in of_servers for target in watched)


def waits_outside(tree: TreeState, main: int) -> bool:
    """Whether the thread *main* waits for a child, or for a pipe or socket whose other end its own process does not
    hold. No other thread of the process can end such a wait."""
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
    connections = connections_of(pid)
    peers = [connection.raddr for connection in connections if connection.fd == descriptor and connection.raddr]
    return bool(peers) and all(connection.laddr != peers[0] for connection in connections)


def _doing(thread: ThreadState) -> str:
    """What a thread does, without a look at the other end."""
    if thread.state in STOPPED:
        return _IS_STOPPED
    if thread.call in _DOING:
        return _DOING[thread.call]
    if thread.call.startswith("futex") or thread.call in MULTIPLEXERS:
        awaited = "input or output" if thread.call in MULTIPLEXERS else "a lock"
        return f"waits for {awaited}{'' if thread.endless else ', with a timeout'}"
    if thread.descriptor is not None:
        return f"is in {thread.call} on {descriptor_target(thread.pid, thread.descriptor)}"
    return f"is in {thread.call}"


def _watched(thread: ThreadState, tree: Iterable[int]) -> str:
    """What a thread waits for in epoll or poll."""
    if thread.descriptor is None:
        watched = polled_by(thread.pid, thread.thread) if thread.call in ("poll", "ppoll") else []
    else:
        watched = watched_by(thread.pid, thread.descriptor)
    targets = {target: number for number in watched if (target := descriptor_target(thread.pid, number)) != GONE}
    ends = {target: _other_end(thread.pid, number, target, tree) for target, number in targets.items()}
    others = [f"{target}{end}" for target, end in ends.items() if end != _ONLY_ITSELF]
    if ends and not others:
        return ", which only this process can send"
    return f" on {'; '.join(others[:_MOST_HOLDERS])}" if others else ""


def _other_end(pid: int, descriptor: int, target: str, tree: Iterable[int]) -> str:
    if target.startswith("pipe:"):
        return _holders(pid, target, target, tree)
    if target.startswith("socket:"):
        peer = unix_peer(int(target[8:-1]))
        return _holders(pid, target, f"socket:[{peer}]", tree) if peer else _internet_peer(pid, descriptor)
    return ""


def _lock_holder(pid: int, descriptor: int, tree: Iterable[int]) -> str:
    holders = [lock.owner for lock in file_locks(pid, descriptor)]
    return f", held by {_described(holders, next(iter(tree), None))}" if holders else ""


def _holders(pid: int, own_target: str, target: str, tree: Iterable[int]) -> str:
    """Who holds the other end: processes of the test, else any other process. Both ends of a pipe have one name."""
    members = list(tree)
    holders = [other for other in members if other != pid and target in links_of(other)]
    ends_of_its_own = links_of(pid).count(target) - (own_target == target)
    if not holders and ends_of_its_own:
        return _ONLY_ITSELF
    holders = holders or [other for other in pids() if other != pid and target in links_of(other)][:1]
    if not holders:
        return ", whose other end no process holds"
    return f", at whose other end is {_described(holders, members[0])}"


def _described(pids: Iterable[int], test: int | None) -> str:
    """Who some processes are and what they do, stopped ones first."""
    words = []
    for pid in pids:
        states = look_at_process(pid)
        words.append(f"{process_name(pid, test)}, which {_doing(states[0]) if states else 'has ended'}")
    words.sort(key=lambda text: not text.endswith(_IS_STOPPED))
    return " and ".join(words[:_MOST_HOLDERS])


def unix_peer(inode: int) -> int | None:
    """The inode of the socket that a Unix socket is connected to. No file lists it, but netlink does."""
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
    for connection in connections_of(pid):
        if connection.fd == descriptor:
            if not connection.raddr:
                return f" (listening on {connection.laddr.ip}:{connection.laddr.port})" if connection.laddr else ""
            host, port = connection.raddr
            return f" (peer {host}:{port}{_owner_of(pid, port)})"
    return ""


def _owner_of(pid: int, port: int) -> str:
    """The process of this machine that serves *port*."""
    import psutil

    try:
        connections = psutil.net_connections(kind="inet")
    except psutil.Error:
        return ""
    owners = {one.pid for one in connections if one.laddr and one.laddr.port == port and one.pid}
    if owners == {pid}:
        return ", served by this process itself"
    others = sorted(owners - {pid})[:1]
    return f", served by {_described(others, None)}" if others else ""

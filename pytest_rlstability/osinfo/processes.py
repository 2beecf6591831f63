"""Which processes exist: who started whom, which belong to a test, their command lines and processor time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from os import getpid

from pytest_rlstability.osinfo import LINUX, linux, portable
from pytest_rlstability.osinfo.proc_records import Stat

ENDED = "ZX"
"""States of a process that has ended; the first is a zombie."""

# What the command lines of multiprocessing's own processes, and of loky's, contain.
_HELPERS = ("resource_tracker import main",)
_FORK_SERVER = "multiprocessing.forkserver"
_SPAWNED_WORKER = "multiprocessing-fork"
_SHORT, _SHORTER = 120, 60
"""Characters of a command line that are shown on a line about one process, and on a line about several."""


def children_of(pid: int) -> list[int]:
    """The direct children of a process, zombies included."""
    return linux.children_of(pid) if LINUX else portable.children_of(pid)


def descendants_of(pid: int) -> Iterator[int]:
    """Every process below *pid*, nearest first."""
    waiting = children_of(pid)
    while waiting:
        child = waiting.pop(0)
        yield child
        waiting += children_of(child)


# Bound here: a test may replace the functions of os.
_wait_for_any: Callable[[], object] | None = None
if sys.platform == "linux":
    _wait_for_any = partial(os.waitid, os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)


def has_children() -> bool:
    """Whether this process has any child; cheap, because it reads no file. False where the system cannot say."""
    try:
        if _wait_for_any is None:
            return False
        _wait_for_any()
        return True
    except ChildProcessError:
        return False


def process_table() -> dict[int, Stat]:
    """Every process. Empty except on Linux."""
    return {pid: stat for pid in linux.pids() if (stat := linux.stat(pid)) is not None}


def descendants_in(table: Mapping[int, Stat], roots: Collection[int]) -> set[int]:
    """The processes of *table* that descend from one of *roots*. Slower than ``descendants_of``, but misses none: the
    kernel may skip a child while another ends."""
    parents = {pid: stat.parent for pid, stat in table.items()}
    family = {*roots}
    while fresh := {pid for pid, parent in parents.items() if parent in family and pid not in family}:
        family |= fresh
    return family.difference(roots)


def find_descendants() -> dict[int, str]:
    """The state letter of each process that descends from this one, by pid."""
    table = process_table()
    return {pid: table[pid].state for pid in descendants_in(table, [getpid()])}


def members_of(pid: int, strangers: Collection[int] | None = None) -> list[int]:
    """The processes of the test *pid*: itself, its descendants, and descendants whose own parent has died.

    The latter became children of the process that started the test, as the processes of other tests are, the
    *strangers*. If strangers are not given, every process that leads a session is taken for one.
    """
    members = [pid, *(one for one in descendants_of(pid) if strangers is None or one not in strangers)]
    own = linux.stat(pid)
    if own is None or own.parent <= 1:
        return members
    for orphan in children_of(own.parent):
        if orphan in members or (stat := linux.stat(orphan)) is None:
            continue
        is_stranger = stat.session == orphan if strangers is None else orphan in strangers
        if stat.session and not is_stranger:
            members += [orphan, *descendants_of(orphan)]
    return members


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    if not LINUX:
        return portable.is_alive(pid)
    stat = linux.stat(pid)
    return stat is not None and stat.state not in ENDED


def ticks_of(pid: int) -> int:
    """The processor time of a process and its ended children, in units of 10 ms."""
    if not LINUX:
        return sum(portable.threads_of(pid).values()) or (portable.activity(pid) or ("", 0, 0))[1]
    stat = linux.stat(pid)
    return 0 if stat is None else stat.ticks_with_children


def delay_of(pid: int) -> float:
    """Seconds for which the first thread of a process was ready to run and waited for a processor."""
    schedule = linux.schedule(pid).split()
    return int(schedule[1]) / 1e9 if len(schedule) > 1 else 0.0


def command_of(pid: int) -> str:
    """The command line of a process; empty when it has ended or is about to."""
    return linux.command_of(pid) if LINUX else portable.command_of(pid)


def short_command(pid: int) -> str:
    """The beginning of the command line; for a zombie, which has none, its name."""
    stat = linux.stat(pid)
    return command_of(pid)[:_SHORT] or ("?" if stat is None else stat.name)


def process_name(pid: int, test: int | None) -> str:
    """``pid 7 (python env.py)``, or that it is the test itself or forked from it: forks share its command line."""
    command = command_of(pid)
    if test is not None and command and command == command_of(test):
        return f"pid {pid} (the test itself)" if pid == test else f"pid {pid} (forked from the test)"
    if _FORK_SERVER in command or _SPAWNED_WORKER in command:
        return f"pid {pid} (multiprocessing's {'fork server' if is_helper(pid) else 'worker'})"
    return f"pid {pid} ({command[:_SHORTER] or 'ended'})"


def is_helper(pid: int) -> bool:
    """Whether multiprocessing or loky started a process for its own purposes. Workers that the fork server forks have
    its command line."""
    command = command_of(pid)
    if _FORK_SERVER in command:
        own = linux.stat(pid)
        return own is None or _FORK_SERVER not in command_of(own.parent)
    return any(word in command for word in _HELPERS)


def is_fork_server(pid: int) -> bool:
    """Whether a process is multiprocessing's fork server, and not a worker that it forked."""
    return _FORK_SERVER in command_of(pid) and is_helper(pid)


def ends_by_itself(pid: int) -> bool:
    """Whether a process cleans up and ends as soon as the test's process has ended: a helper, or a worker that was not
    forked from the test."""
    command = command_of(pid)
    return any(word in command for word in (*_HELPERS, _FORK_SERVER, _SPAWNED_WORKER))

"""Child processes: those that live and those that ended and were never waited for."""

from __future__ import annotations

import os
import time

from pytest_rlstability.signals.proc import read_bytes, require_directory
from pytest_rlstability.signals.protocol import Signal


def has_children() -> bool:
    """Whether this process has any child at all, without looking through ``/proc``."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def parents_and_states() -> dict[int, tuple[int, str]]:
    """Every process there is: pid -> (pid of its parent, state letter)."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            _, _, fields = read_bytes(f"/proc/{name}/stat").rpartition(b") ")
            if fields:
                state, parent = fields.split(None, 2)[:2]
                table[int(name)] = (int(parent), state.decode())
    return table


class Picture:
    """The last look through ``/proc``: the three signals of one sample share it."""

    valid_for = 0.0005

    def __init__(self) -> None:
        self._taken_at = (0, 0.0)
        self._found: dict[int, str] = {}

    def descendants(self) -> dict[int, str]:
        owner, moment = self._taken_at
        if owner != os.getpid() or time.monotonic() - moment > self.valid_for:
            self._found = find_descendants()
            self._taken_at = (os.getpid(), time.monotonic())
        return self._found


_picture = Picture()


def descendants() -> dict[int, str]:
    """pid -> state letter of every process that descends from this one."""
    return _picture.descendants() if has_children() else {}


def find_descendants() -> dict[int, str]:
    table = parents_and_states()
    family: set[int] = {os.getpid()}
    found: dict[int, str] = {}
    grown = True
    while grown:
        fresh = {pid: state for pid, (parent, state) in table.items() if parent in family and pid not in family}
        found.update(fresh)
        family.update(fresh)
        grown = bool(fresh)
    return found


def command_of(pid: int) -> str:
    command = read_bytes(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    name = read_bytes(f"/proc/{pid}/comm").decode(errors="replace").strip()
    return command[:120] or name or "?"


class Processes(Signal):
    name = "processes"
    title = "child processes"
    exact = True
    dead_states = False

    def __init__(self) -> None:
        require_directory("/proc/self")

    def read(self) -> float:
        return sum((state in "ZX") == self.dead_states for state in descendants().values())

    def inventory(self) -> dict[str, str]:
        kind = "zombie" if self.dead_states else "process"
        pids = [pid for pid, state in descendants().items() if (state in "ZX") == self.dead_states]
        return {str(pid): f"{kind} {pid}: {command_of(pid)}" for pid in pids}


class Zombies(Processes):
    name = "zombies"
    title = "zombie processes"
    dead_states = True

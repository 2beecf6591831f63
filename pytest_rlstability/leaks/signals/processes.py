"""Child processes: the running ones, and those that ended and were never waited for."""

from __future__ import annotations

import os
import time

from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo.linux import require_proc
from pytest_rlstability.osinfo.processes import find_descendants, has_children, short_command


class Picture:
    """The last look at all processes, which the four signals of one sample share."""

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


def children(*, ended: bool = False) -> list[int]:
    """The pids of the descendants that run, or of those that have *ended* and were not waited for."""
    return [pid for pid, state in descendants().items() if (state in "ZX") == ended]


class Processes(Signal):
    name = "processes"
    title = "child processes"
    exact = True
    ended = False

    def __init__(self) -> None:
        require_proc()

    def read(self) -> float:
        return len(children(ended=self.ended))

    def inventory(self) -> dict[str, str]:
        kind = "zombie" if self.ended else "process"
        return {str(pid): f"{kind} {pid}: {short_command(pid)}" for pid in children(ended=self.ended)}


class Zombies(Processes):
    name = "zombies"
    title = "zombie processes"
    ended = True

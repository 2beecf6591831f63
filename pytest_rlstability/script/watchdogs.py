"""What looks at a script while it runs, beside what looks at every test."""

from __future__ import annotations

import math
import time
from pathlib import Path

from pytest_rlstability.model.messages import Sampled
from pytest_rlstability.model.run import Killed
from pytest_rlstability.osinfo import LINUX
from pytest_rlstability.osinfo.linux import descriptor_target
from pytest_rlstability.osinfo.memory import resident_memory
from pytest_rlstability.osinfo.threads import look_at_tree
from pytest_rlstability.script.command import Command
from pytest_rlstability.session.test_process import TestProcess
from pytest_rlstability.session.watchdogs.limits import watch_briefly
from pytest_rlstability.session.watchdogs.stall import StallWatch

_SHORTEST, _LONGEST = 0.25, 10.0
"""Seconds between two samples of memory, at first and later."""
_INPUT = ("read", "poll", "ppoll", "select", "pselect6")
_TERMINALS = ("/dev/pts/", "/dev/tty")


class MemorySamples:
    """Reads the memory of the command and all its processes. The number of heartbeats stands for laps."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._began = time.monotonic()
        self.due = self._began + _SHORTEST

    def observe(self, process: TestProcess) -> None:
        self._command.reap_orphans()
        seconds = time.monotonic() - self._began
        memory = resident_memory(self._command.pid)
        self._command.most_memory = max(self._command.most_memory, memory)
        if memory:
            process.handle(Sampled(process.counters.beats, round(seconds, 3), {"rss": float(memory)}))
        self.due = time.monotonic() + min(max(_SHORTEST, seconds / 100), _LONGEST)


class ScriptStall(StallWatch):
    """A script that waits for a person at the terminal does not stand still."""

    def check(self, process: TestProcess) -> Killed | None:
        killed = super().check(process)
        return None if killed is not None and waits_for_a_person(process.pid) else killed


def waits_for_a_person(pid: int) -> bool:
    """Whether the main thread waits for input, and its standard input is a terminal."""
    if not LINUX or not descriptor_target(pid, 0).startswith(_TERMINALS):
        return False
    main = next((thread for thread in look_at_tree(pid, [pid]).threads if thread.thread == pid), None)
    return main is not None and main.asleep and main.call in _INPUT and main.descriptor in (None, 0)


class SecondInterrupt:
    """Ends a script that goes on after two Ctrl-C, and shows what it does. ``due`` is set when that happens."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.due = math.inf

    def check(self, process: TestProcess) -> Killed:
        return Killed("stall", "still running at the second Ctrl-C", gather=watch_briefly(process, self._directory))

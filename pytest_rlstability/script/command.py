"""Starts the command of ``rlstability run`` as a shell would, and ends it with everything below it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from pytest_rlstability.child.script import SITE, VARIABLE
from pytest_rlstability.model.run import Exit
from pytest_rlstability.osinfo.child_exit import exit_notice, own_peak_memory, wait_for
from pytest_rlstability.osinfo.process_control import (
    adopt_orphans,
    die_with_parent,
    end_tree,
    kill_tree,
    reap,
    send_signal,
)
from pytest_rlstability.osinfo.processes import children_of, command_of, ends_by_itself, is_alive
from pytest_rlstability.session.connections import Connections
from pytest_rlstability.session.test_process import TestProcess

_FORWARDED = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]


class CannotStartError(Exception):
    """The command cannot be started; the text says why."""


class Command:
    """A running command. It has the terminal, as if it had been started by itself, and dies with this process."""

    def __init__(self, words: Sequence[str], connections: Connections, environment: Mapping[str, str]) -> None:
        self._connections = connections
        self._has_terminal = _in_foreground()
        adopt_orphans()
        try:
            self._popen = subprocess.Popen(
                words,
                env=environment,
                preexec_fn=die_with_parent,
                process_group=None if self._has_terminal else 0,
            )
        except OSError as error:
            raise CannotStartError(f"cannot start {words[0]!r}: {error.strerror or error}") from None
        self.pid = self._popen.pid
        self.interrupts = 0
        self.most_memory = 0
        """The most that was seen in use, by all its processes together."""

    def follow(self, process: TestProcess) -> None:
        """Have the connections note the end of the command as that of *process*."""
        notice = exit_notice(self.pid)

        def note() -> None:
            notice.close()
            for _ in range(2):  # it may have died before its greeting was read
                self._connections.pump(0)
            status, peak = wait_for(self.pid)
            self._popen.returncode = status
            if peak <= own_peak_memory():  # the kernel counts what this process had when it forked
                peak = 0
            self._connections.note_exit(process, Exit(status, max(peak, self.most_memory), tuple(self._left_running())))

        self._connections.call_when_readable(notice, note)

    def end(self, process: TestProcess) -> None:
        """Kill everything."""
        process.killed = True
        kill_tree(process.pid)
        kill_tree(self.pid)

    def end_rest(self) -> None:
        """After the command was killed: end what it had started and what has left its process group."""
        for pid in self._others():
            end_tree(pid)
        self.reap_orphans()

    def reap_orphans(self) -> None:
        """Do what init would do for processes whose parent, a part of the command, has ended."""
        for pid in self._others():
            reap(pid)

    def _others(self) -> list[int]:
        return [pid for pid in children_of(os.getpid()) if pid != self.pid]

    def _left_running(self) -> Iterator[str]:
        for pid in self._others():
            if is_alive(pid) and not ends_by_itself(pid):
                yield f"{command_of(pid)} (pid {pid})"

    @contextmanager
    def forwarding_signals(self) -> Iterator[None]:
        """Pass on what is sent to this process. A terminal sends Ctrl-C to the command too, so that one is counted
        only."""

        def forward(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGINT:
                self.interrupts += 1
            if number != signal.SIGINT or not self._has_terminal:
                send_signal(self.pid, number)

        numbers = [signal.SIGINT, *_FORWARDED]
        before = {number: signal.signal(number, forward) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def environment_for(process: TestProcess, connections: Connections, *, hold: bool, seed: int | None) -> dict[str, str]:
    """The environment in which every Python process of a command connects to this one."""
    order = {"directory": str(connections.directory), "serial": process.serial, "hold": hold, "seed": seed}
    given = {} if seed is None else {"PYTHONHASHSEED": str(seed % 2**32)}
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([SITE, *([before] if before else [])])
    return {**given, **os.environ, VARIABLE: json.dumps(order), "PYTHONPATH": path}


def _in_foreground() -> bool:
    """Whether this process may read from the terminal it was started in. Then the command shares its process group."""
    if sys.platform != "win32" and sys.stdin is not None:
        with suppress(OSError, ValueError, AttributeError):
            return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    return False

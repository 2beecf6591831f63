"""The process that brings tests' processes into the world and buries them.

It stands between pytest and the tests so that pytest itself is never forked after it has run anything, and so
that whatever a test leaves behind falls to a parent that knows to end it. One loop serves both backends; they
differ only in how a process is born (``Birth``): forked from this one (the zygote) or started afresh (spawn).
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pytest_rlstability.isolation import kernel
from pytest_rlstability.isolation.board import Board
from pytest_rlstability.isolation.wire import Address, Record, Wire, connect

Birth = Callable[[Record], int]
"""Starts the process an order describes, in a session of its own, and returns its pid."""

_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)

# Helpers of multiprocessing and loky that end by themselves once the test's process is gone, cleaning up as they do.
_SELF_ENDING = ("resource_tracker import main", "multiprocessing.forkserver", "multiprocessing-fork")
_GRACE = 1.0
_ORPHANS_AGE = 0.1
"""Seconds an orphan that has ended may stay a zombie."""


@dataclass
class _Ward:
    serial: int
    pid: int
    exit_notice: int | socket.socket = field(repr=False)


class Keeper:
    """Serves orders from the supervisor until its end of the wire closes; then ends everything and returns.

    Orders: ``{"do": "bear", "serial": n, ...}``, ``{"do": "end", "serial": n}``, and at last ``{"do": "leave"}``;
    when the wire closes without it, pytest was killed, and its files are ours to remove. Answers: when a process has
    ended and what it left is gone, ``{"serial": n, "status", "peak", "leftovers"}``.
    """

    def __init__(self, wire: Wire, bear: Birth, directory: Path) -> None:
        self._wire = wire
        self._directory = directory
        self._dismissed = False
        self._bear = bear
        self._board = Board(directory)
        self._selector = selectors.DefaultSelector()
        self._selector.register(wire, selectors.EVENT_READ)
        self._wards: dict[int, _Ward] = {}

    def serve(self) -> None:
        kernel.adopt_orphans()
        try:
            while not self._wire.closed:
                ready = self._selector.select(_ORPHANS_AGE if self._wards else None)
                for key, _ in ready:
                    if key.fileobj is self._wire:
                        self._obey_all()
                    else:
                        self._bury(key.data)
                if not ready:
                    self._reap_orphans()
        finally:
            self._end_everything()

    def _obey_all(self) -> None:
        for order in self._wire.drain():
            self._obey(order)

    def _obey(self, order: Record) -> None:
        if order["do"] == "leave":
            self._dismissed = True
            return
        serial = order["serial"]
        if order["do"] == "end":
            if ward := self._wards.get(serial):
                _kill_session(ward.pid)
            return
        pid = self._bear(order)
        ward = _Ward(serial, pid, _exit_notice(pid))
        self._wards[serial] = ward
        self._selector.register(ward.exit_notice, selectors.EVENT_READ, ward)

    def _bury(self, ward: _Ward) -> None:
        self._selector.unregister(ward.exit_notice)
        _close(ward.exit_notice)
        del self._wards[ward.serial]
        status, peak = _reap(ward.pid)
        leftovers = self._clear_up(ward)
        self._wire.send({"serial": ward.serial, "status": status, "peak": peak, "leftovers": leftovers})

    def _clear_up(self, ward: _Ward) -> list[str]:
        """End what the dead test left running, and name it."""
        named: list[str] = []
        for pid in self._strays(ward):
            command = kernel.command_of(pid)
            if command and not any(word in command for word in _SELF_ENDING):
                named.append(f"{command} (pid {pid})")
                _signal(pid, signal.SIGTERM)
        patience = time.monotonic() + _GRACE
        while self._reap_strays(ward):
            if time.monotonic() > patience:
                for pid in self._strays(ward):
                    _signal(pid, _KILL)
            time.sleep(0.002)
        return named

    def _reap_orphans(self) -> None:
        """Do what init would: a test may wait until a process that was orphaned and has ended is gone."""
        for pid in {*kernel.children_of(os.getpid())} - self._pids():
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def _strays(self, ward: _Ward) -> list[int]:
        """Processes that fell to us. While other tests run, only those of the dead one's session."""
        strays = [pid for pid in kernel.children_of(os.getpid()) if pid not in self._pids()]
        if strays and any(self._board.slot(serial).phase != "start" for serial in self._wards):
            strays = [pid for pid in strays if _session_of(pid) == ward.pid]
        return strays

    def _pids(self) -> set[int]:
        return {ward.pid for ward in self._wards.values()}

    def _reap_strays(self, ward: _Ward) -> bool:
        """Reap the strays that have ended; whether any is left."""
        alive = False
        for pid in self._strays(ward):
            try:
                alive |= os.waitpid(pid, os.WNOHANG) == (0, 0)
            except ChildProcessError:
                alive = True  # somebody else's child seen in passing; look again
        return alive

    def _end_everything(self) -> None:
        for ward in self._wards.values():
            _kill_session(ward.pid)
        for pid in kernel.descendants_of(os.getpid()):
            _signal(pid, _KILL)
        if not self._dismissed:
            shutil.rmtree(self._directory, ignore_errors=True)  # pytest was killed, and cannot do it


def _exit_notice(pid: int) -> int | socket.socket:
    """Something that becomes readable when the process ends."""
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):
            return os.pidfd_open(pid)
    ours, theirs = socket.socketpair()
    threading.Thread(target=_tell_exit, args=(pid, theirs), daemon=True).start()
    return ours


_statuses: dict[int, int] = {}


def _tell_exit(pid: int, notice: socket.socket) -> None:
    _statuses[pid] = os.waitpid(pid, 0)[1]
    notice.close()


def _close(notice: int | socket.socket) -> None:
    if isinstance(notice, int):
        os.close(notice)
    else:
        notice.close()


def _reap(pid: int) -> tuple[int, int]:
    """Wait status, as subprocess gives it (negative: a signal), and peak memory in bytes (0: unknown)."""
    if pid in _statuses:
        return os.waitstatus_to_exitcode(_statuses.pop(pid)), 0
    if not hasattr(os, "wait4"):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _kill_session(pid: int) -> None:
    """Kill a test's process group, and its descendants that left the group."""
    descendants = list(kernel.descendants_of(pid))
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, _KILL)
    for target in (pid, *descendants):
        _signal(target, _KILL)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def greet_hub(hub: Address, token: str) -> Wire:
    """A keeper's connection to the hub."""
    connection = connect(hub)
    wire = Wire(connection)
    wire.send({"kind": "hello", "role": "keeper", "token": token})
    connection.setblocking(False)
    return wire


def spawn(order: Record) -> int:
    """The spawn backend's birth: a fresh interpreter that will ask the hub for its brief."""
    process = subprocess.Popen(
        [
            order["python"],
            "-m",
            "pytest_rlstability.isolation.spawned",
            json.dumps(order["hub"]),
            order["token"],
            str(order["serial"]),
        ],
        env=order["environment"],
        cwd=order["directory"],
        start_new_session=True,
    )
    process.returncode = 0  # reaped by the keeper, not by Popen
    return process.pid


if __name__ == "__main__":
    # Started by the supervisor for the spawn backend: an interpreter that has imported nothing of the user's.
    Keeper(greet_hub(json.loads(sys.argv[1]), sys.argv[2]), spawn, Path(sys.argv[3])).serve()

"""Runs in a script's process, before the script: connects it to ``rlstability run``. Needs no pytest.

The first Python process of the command is the script. The others are its workers. A worker that crashes writes its
stacks to a file, and the process that watches names it.
"""

from __future__ import annotations

import threading
from atexit import register as at_exit
from collections.abc import Mapping
from contextlib import suppress
from json import loads  # bound here, as all below: a script may replace them
from os import O_CREAT, O_EXCL, O_WRONLY, close, getpid, write
from os import open as open_descriptor
from pathlib import Path
from threading import enumerate as all_threads
from threading import get_ident, get_native_id

from pytest_rlstability.child.alarms import report_alarms
from pytest_rlstability.child.changes import apply_changes
from pytest_rlstability.child.crash_handlers import CrashHandlers, follow_forks, write_worker_stacks
from pytest_rlstability.child.dead_workers import dead_workers, remember_ends
from pytest_rlstability.child.error_lines import watch_errors
from pytest_rlstability.child.link import Link, ProcessChannel
from pytest_rlstability.child.references import watch_references
from pytest_rlstability.child.seeds import Seeds
from pytest_rlstability.compat.cpython import on_thread_start
from pytest_rlstability.model.messages import CleanExit, ThreadStarted
from pytest_rlstability.model.progress_channel import Channel, use_channel
from pytest_rlstability.model.progress_counters import ProgressCounters
from pytest_rlstability.osinfo.endpoint import Endpoint
from pytest_rlstability.osinfo.processes import is_alive

VARIABLE = "RLSTABILITY_RUN"
"""The environment variable that holds the directory of the run and what was asked, as JSON."""
SITE = str(Path(__file__).parent / "site")
"""The directory whose ``sitecustomize`` calls ``attach``."""


def attach(environment: Mapping[str, str]) -> None:
    """Become the script under watch, or one of its workers, after the changes that a diagnosis asks for."""
    apply_changes(environment)
    watch_errors(environment)
    watch_references(environment)
    if not (given := environment.get(VARIABLE)):
        return
    order = loads(given)
    if not Path(order["directory"]).is_dir():
        return  # the run is over: this process has outlived it
    endpoint = Endpoint.load(order["directory"])
    if order["seed"] is not None:
        Seeds().apply(order["seed"])
    if _claim(endpoint.directory):
        ScriptProcess(endpoint, order["serial"], hold=order["hold"])
    else:
        write_worker_stacks(endpoint.directory)
        follow_forks(endpoint.directory, lambda: True)


def _claim(directory: Path) -> bool:
    """Whether this process is the script: the first one, or the first after that has ended."""
    path = directory / "script.pid"
    with suppress(OSError, ValueError):
        owner = int(path.read_text())
        if owner == getpid() or not is_alive(owner):  # it has become another program, or has ended
            path.unlink()
    try:
        descriptor = open_descriptor(path, O_WRONLY | O_CREAT | O_EXCL, 0o600)
    except FileExistsError:
        return False
    write(descriptor, str(getpid()).encode())
    close(descriptor)
    return True


class ScriptProcess:
    """The process of a script: its crash is held, its threads have names, its stages and heartbeats are seen."""

    def __init__(self, endpoint: Endpoint, serial: int, *, hold: bool) -> None:
        self._pid = getpid()
        self._directory = endpoint.directory
        remember_ends()
        self._crashes = CrashHandlers(hold=hold)  # before anybody can ask for stacks
        link = Link.open(endpoint, serial)
        self._connection = link.messages
        self._counters = ProgressCounters(endpoint.directory).of_process(serial)
        self._counters.begin()
        self._crashes.write_to(link.crash_descriptor)
        follow_forks(endpoint.directory, self._cut_off)
        use_channel(ProcessChannel(self._connection, self._counters))
        on_thread_start(self._send_thread)
        report_alarms(self._note_alarm)
        for thread in all_threads():
            self._send_thread(thread)
        self._counters.enter("call")
        at_exit(self._exit)

    def _exit(self) -> None:
        """Called last of all exit callbacks, because it was registered first."""
        if getpid() == self._pid:
            self._counters.enter("exit")
            self._crashes.stop_holding()
            for worker in dead_workers(self._directory):
                self._connection.send(worker)
            self._connection.send(CleanExit())

    def _note_alarm(self, seconds: float, again: bool) -> None:
        if not self._connection.closed:
            self._counters.set_alarm(seconds, again=again)

    def _cut_off(self) -> bool:
        """In a fork of the script: send nothing in its name."""
        self._connection.close()
        use_channel(Channel())
        return True

    def _send_thread(self, thread: threading.Thread) -> None:
        native = get_native_id() if thread.ident == get_ident() else thread.native_id
        self._connection.send(ThreadStarted(thread.ident or 0, native or 0, thread.name, thread.daemon, False))

"""The process that starts test processes and reaps them.

It stands between pytest and the tests, so that pytest itself is never forked after it has run anything, and so that
what a test leaves running falls to a parent that ends it. One loop serves both backends. They differ only in how a
process is started: forked from this one (the zygote), or as a fresh interpreter (spawn).
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import IO

from pytest_rlstability.model.messages import (
    EndProcess,
    Hello,
    Message,
    ProcessEnded,
    ProtocolError,
    Quit,
    StartFailed,
    StartProcess,
    TearDownFixtures,
)
from pytest_rlstability.model.progress_counters import ProgressCounters
from pytest_rlstability.osinfo.child_exit import exit_notice, left_running, wait_for
from pytest_rlstability.osinfo.descriptors import remove_directory
from pytest_rlstability.osinfo.endpoint import Endpoint
from pytest_rlstability.osinfo.message_socket import MessageSocket, connect
from pytest_rlstability.osinfo.process_control import adopt_orphans, end_children, forget_child, kill_tree, reap
from pytest_rlstability.osinfo.processes import children_of, command_of, descendants_of, ends_by_itself

Start = Callable[[StartProcess], int]
"""Starts the process that the message describes, in a session of its own, and returns its pid."""

_GRACE = 1.0
_EXEC = 0.02
_ZOMBIE_AGE = 0.1
"""Seconds that an orphan which has ended may stay a zombie."""


@dataclass
class _Started:
    serial: int
    pid: int
    exit_notice: IO[bytes] | socket.socket = field(repr=False)


class ProcessParent:
    """Starts and ends processes as pytest's process asks, and reports how each of them ended.

    Returns when the connection closes, after it has ended everything. If no ``Quit`` came before that, pytest was
    killed, and its files are removed here.
    """

    def __init__(
        self,
        connection: MessageSocket,
        start: Start,
        endpoint: Endpoint,
        tear_down: Callable[[], None] = lambda: None,
        keeps: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._connection = connection
        self._start = start
        self._tear_down = tear_down
        self._keeps = keeps
        """Children of this process that no test has left running."""
        self._directory = endpoint.directory
        self._quit = False
        self._counters = ProgressCounters(endpoint.directory)
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        self._processes: dict[int, _Started] = {}

    def serve(self) -> None:
        adopt_orphans()
        try:
            while not self._connection.closed:
                ready = self._selector.select(_ZOMBIE_AGE if self._processes else None)
                for key, _ in ready:
                    if key.fileobj is self._connection:
                        for message in self._connection.drain():
                            self._handle(message)
                    else:
                        self._reap(key.data)
                if not ready:
                    self._reap_orphans()
        finally:
            self.end_everything()

    def _handle(self, message: Message) -> None:
        match message:
            case StartProcess():
                self._start_process(message)
            case TearDownFixtures():
                self._tear_down()
            case EndProcess(serial):
                if serial in self._processes:
                    kill_tree(self._processes[serial].pid)
            case Quit():
                self._quit = True
            case _:
                raise ProtocolError(f"the parent of test processes does not get {type(message).__name__}")

    def _start_process(self, order: StartProcess) -> None:
        """A start that fails is an answer, not the end of this process."""
        try:
            pid = self._start(order)
        except Exception as error:
            again = isinstance(error, OSError)  # too many processes, or too little memory, at this moment
            self._connection.send(StartFailed(order.serial, str(error) or repr(error), again))
            return
        process = _Started(order.serial, pid, exit_notice(pid))
        self._processes[order.serial] = process
        self._selector.register(process.exit_notice, selectors.EVENT_READ, process)

    def _reap(self, process: _Started) -> None:
        self._selector.unregister(process.exit_notice)
        process.exit_notice.close()
        del self._processes[process.serial]
        status, peak = wait_for(process.pid)
        strays = tuple(self._end_strays(process))
        forget_child(process.pid)
        self._connection.send(ProcessEnded(process.serial, status, peak, strays))

    def _end_strays(self, process: _Started) -> Iterator[str]:
        """End what the test left running, and name it."""
        for pid in self._strays(process):
            if not command_of(pid):
                time.sleep(_EXEC)  # it is about to end, or the kernel is just loading its program
            if (command := command_of(pid)) and not ends_by_itself(pid):
                yield f"{command} (pid {pid})"
        end_children(lambda: self._strays(process), grace=_GRACE, spare=ends_by_itself)

    def _reap_orphans(self) -> None:
        """Do what init would do: a test may wait until an orphaned process that has ended is gone."""
        for pid in {*children_of(os.getpid())} - self._pids():
            reap(pid)

    def _strays(self, process: _Started) -> list[int]:
        alone = all(self._counters.of_process(serial).phase == "start" for serial in self._processes)
        return left_running(process.pid, self._pids(), alone=alone)

    def _pids(self) -> set[int]:
        return {*self._keeps(), *(process.pid for process in self._processes.values())}

    def end_everything(self) -> None:
        """Kill all that is below this process, and remove the run's files if pytest cannot do it any more."""
        for process in self._processes.values():
            kill_tree(process.pid)
        for pid in descendants_of(os.getpid()):
            kill_tree(pid)
        if not self._quit:
            self._counters.close()
            remove_directory(self._directory)  # pytest was killed and cannot do it


def connect_parent(endpoint: Endpoint) -> MessageSocket:
    """The connection of a parent of test processes to pytest's process."""
    try:
        connection = connect(endpoint.address)
    except (ConnectionRefusedError, FileNotFoundError):  # pytest was killed meanwhile
        remove_directory(endpoint.directory)
        os._exit(0)
    messages = MessageSocket(connection)
    messages.send(Hello("parent", endpoint.token, pid=os.getpid()))
    connection.setblocking(False)
    return messages

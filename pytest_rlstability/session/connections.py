"""pytest's end of every connection to the processes of a run, read in one place."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlstability.child.output import output_paths
from pytest_rlstability.model.messages import (
    FixturesTornDown,
    Hello,
    Message,
    ProcessEnded,
    ProtocolError,
    Quit,
    StartFailed,
)
from pytest_rlstability.model.progress_counters import ProgressCounters
from pytest_rlstability.model.run import Exit
from pytest_rlstability.osinfo import WINDOWS
from pytest_rlstability.osinfo.descriptors import remove_directory
from pytest_rlstability.osinfo.endpoint import accept, is_own_user, listen
from pytest_rlstability.osinfo.message_socket import MessageSocket
from pytest_rlstability.osinfo.process_control import end_tree, wake_if_stopped
from pytest_rlstability.osinfo.timed_stacks import crash_in, sent_path, stacks_path
from pytest_rlstability.session.test_process import TestProcess

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

_LOOK = 1.0
"""Seconds from one look at the parents of test processes to the next."""
_INTERRUPTIBLE = 0.5
"""Seconds after which a wait on Windows sees Ctrl-C: it does not end the system's own."""
_MOST_SILENT = 64
"""Connections that may wait for their first message."""
_LONGEST_DUMP = 4 << 20


@dataclass
class ParentLink:
    """What pytest's process knows of a parent of test processes."""

    messages: MessageSocket
    pid: int = 0
    serials: set[int] = field(default_factory=set)
    torn_down: list[FixturesTornDown] = field(default_factory=list)
    """What it said of the wide fixtures that it has torn down."""


class ProcessLinks:
    """What a supervisor needs of the connections to processes. ``pump(timeout)`` waits for something to arrive, at most
    *timeout* seconds, and takes it in."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._selector = selectors.DefaultSelector()

    def pids(self) -> list[int]:
        """The processes that do not belong to a supervised one, even if they are its siblings or children."""
        raise NotImplementedError

    def pump(self, timeout: float) -> None:
        timeout = min(timeout, _INTERRUPTIBLE) if WINDOWS else timeout
        for key, _ in self._selector.select(max(0.0, timeout)):
            key.data()

    def wait_until(self, condition: Callable[[], bool], timeout: float, *, look_every: float = 3600.0) -> bool:
        """Pump until *condition()* holds; False when *timeout* seconds passed first. *look_every*: for a condition that
        may become true without anything arriving."""
        deadline = self._clock() + timeout
        while not condition():
            left = deadline - self._clock()
            if left <= 0:
                return False
            self.pump(min(left, look_every))
        return True

    def call_when_readable(self, file: FileDescriptorLike, call: Callable[[], None]) -> None:
        """Have ``pump`` call *call*, once, when there is something to read from *file*."""

        def call_once() -> None:
            self._unwatch(file)
            call()

        self._selector.register(file, selectors.EVENT_READ, call_once)

    def listen_to(self, process: TestProcess) -> None:
        """Take in the process's messages as they come. Until then they wait for its end, or for ``read``."""
        messages = process.messages
        if messages is not None and not messages.closed and messages.fileno() not in self._selector.get_map():
            self._selector.register(messages, selectors.EVENT_READ, lambda: self._read_test(process, messages))

    def mute(self, process: TestProcess) -> None:
        """Leave the process's messages where they are, until ``listen_to``."""
        if process.messages is not None:
            self._unwatch(process.messages)

    def read(self, process: TestProcess) -> None:
        """Take in the messages that have arrived from the process by now."""
        if process.messages is not None and not process.messages.closed:
            self._read_test(process, process.messages)

    def _read_test(self, process: TestProcess, messages: MessageSocket) -> bool:
        """Take in what has arrived from a test's process; whether anything had."""
        arrived = messages.drain()
        for message in arrived:
            process.handle(message)
        if messages.closed:
            self._unwatch(messages)
        return bool(arrived)

    def _read_dump(self, process: TestProcess, connection: socket.socket) -> None:
        data = b"more"
        while data:
            try:
                data = connection.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            process.crash_dump += data[: _LONGEST_DUMP - len(process.crash_dump)]
        self._unwatch(connection)

    def _unwatch(self, connection: object) -> None:
        try:
            self._selector.unregister(connection)  # type: ignore[arg-type]
        except (KeyError, ValueError):
            return


class Connections(ProcessLinks):
    """Accepts the run's processes and turns what arrives into the state of ``TestProcess`` objects. ``pump`` is the
    only place where pytest's process waits for a test."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.is_open = False
        self._next_look = 0.0
        self._processes: dict[int, TestProcess] = {}
        self._silent: dict[MessageSocket, None] = {}
        """Connections that have not said yet whose they are, the oldest first."""
        self._serial = 0
        self.parents: list[ParentLink] = []

    def open(self) -> Connections:
        """Make the run's directory and listen there."""
        self._server, self.endpoint = listen()
        try:
            self._counters = ProgressCounters(self.directory)
        except OSError:  # no room
            self._server.close()
            remove_directory(self.directory)
            raise
        self._selector.register(self._server, selectors.EVENT_READ, self._accept)
        self.is_open = True
        return self

    @property
    def directory(self) -> Path:
        return self.endpoint.directory

    def expect(self) -> TestProcess:
        """A place for a process that is about to be started."""
        self._serial += 1
        stdout, stderr = output_paths(self.directory, self._serial)
        stacks, sent = stacks_path(self.directory, self._serial), sent_path(self.directory, self._serial)
        process = TestProcess(self._serial, self._counters.of_process(self._serial), stdout, stderr, stacks, sent)
        self._processes[process.serial] = process
        return process

    def pids(self) -> list[int]:
        """Every test process, those that wait for a test included."""
        return [process.pid for process in self._processes.values()]

    def release(self, process: TestProcess) -> None:
        """Forget a process that has ended, and remove its files."""
        self._processes.pop(process.serial, None)
        for connection in (process.messages, process.crash_socket):
            if connection is not None:
                self._unwatch(connection)
                connection.close()
        for path in (process.stdout, process.stderr, process.stacks, process.sent):
            with suppress(OSError):  # not there, or something still has it open, which Windows does not allow
                path.unlink()

    def pump(self, timeout: float) -> None:
        super().pump(min(timeout, _LOOK))
        if (now := self._clock()) >= self._next_look:
            self._next_look = now + _LOOK
            self._wake_parents()

    def _wake_parents(self) -> None:
        """A parent that somebody has stopped would never say how a test ended."""
        for parent in self.parents:
            wake_if_stopped(parent.pid)

    def close(self) -> None:
        """Close every connection and remove the directory of the run."""
        self.abandon()
        if self.is_open:
            self._counters.close()
            remove_directory(self.directory)

    def abandon(self) -> None:
        """Close every connection and keep the files: what a forked copy of pytest's process has to do."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def dismiss(self, parent: ParentLink) -> None:
        """Close the connection to a parent of test processes, which then ends everything below it."""
        self._unwatch(parent.messages)
        parent.messages.send(Quit())
        parent.messages.close()
        if parent in self.parents:
            self.parents.remove(parent)

    def lose(self, parent: ParentLink) -> None:
        """A parent of test processes has died, and its processes with it. Nobody else ends what those had started."""
        self.dismiss(parent)
        for serial in parent.serials:
            process = self._processes.get(serial)
            if process is not None and process.exit is None:
                if process.pid:
                    end_tree(process.pid)
                self._read_rest(process)
                process.exit = Exit(None)

    def note_exit(self, process: TestProcess, exit: Exit) -> None:
        """A process has ended. What it had sent before is read first."""
        process.exit = exit
        self._read_rest(process)
        if WINDOWS and exit.status is not None:
            process.crash_dump += crash_in(process.stacks, exit.status)
        if WINDOWS and process.messages is not None:
            with suppress(OSError):
                for message in process.messages.dropped(process.sent.read_bytes()):
                    process.handle(message)

    def _accept(self) -> None:
        try:
            connection = accept(self._server)
        except OSError:  # it is gone already, or this process has no descriptor left
            return
        if not is_own_user(connection):
            connection.close()
            return
        connection.setblocking(False)
        messages = MessageSocket(connection)
        self._silent[messages] = None
        self._selector.register(messages, selectors.EVENT_READ, lambda: self._greet(messages, connection))
        self._greet(messages, connection)  # the first message is mostly there already
        if len(self._silent) > _MOST_SILENT:
            self._send_away(next(iter(self._silent)))

    def _greet(self, messages: MessageSocket, connection: socket.socket) -> None:
        """The first message of a new connection says whose it is. A stranger's connection is closed."""
        try:
            hello = messages.greeting()
        except ProtocolError:
            self._send_away(messages)
            return
        if hello is None:
            return
        self._stop_greeting(messages)
        match hello:
            case Hello(role="parent", token=self.endpoint.token, pid=int(pid)):
                self._add_parent(messages, pid)
            case Hello(role=role, token=self.endpoint.token, serial=int(serial), pid=int(pid)) if (
                process := self._processes.get(serial)
            ):
                if role == "test":
                    self._add_test(process, messages, pid)
                else:
                    self._add_crash_socket(process, connection, messages.take_unread())
            case _:
                messages.close()

    def _stop_greeting(self, messages: MessageSocket) -> None:
        self._unwatch(messages)
        self._silent.pop(messages, None)

    def _send_away(self, stranger: MessageSocket) -> None:
        self._stop_greeting(stranger)
        stranger.close()

    def _add_parent(self, messages: MessageSocket, pid: int) -> None:
        parent = ParentLink(messages, pid)
        self.parents.append(parent)
        self._selector.register(messages, selectors.EVENT_READ, lambda: self._read_parent(parent))
        self._read_parent(parent)

    def _read_parent(self, parent: ParentLink) -> None:
        self._handle_parent(parent, parent.messages.drain())
        if parent.messages.closed:
            self.lose(parent)

    def _handle_parent(self, parent: ParentLink, arrived: list[Message]) -> None:
        for message in arrived:
            match message:
                case StartFailed(serial):
                    if (process := self._processes.get(serial)) is not None:
                        process.refused = message
                case FixturesTornDown():
                    parent.torn_down.append(message)
                case ProcessEnded(serial, status, peak, strays):
                    if (process := self._processes.get(serial)) is not None:
                        self.note_exit(process, Exit(status, peak, strays))
                case _:
                    raise ProtocolError(f"a parent of test processes does not send {type(message).__name__}")

    def _add_test(self, process: TestProcess, messages: MessageSocket, pid: int) -> None:
        process.messages, process.pid = messages, pid
        if process.first_order is not None:
            messages.send(process.first_order)

    def _add_crash_socket(self, process: TestProcess, connection: socket.socket, arrived: bytes) -> None:
        process.crash_socket = connection
        process.crash_dump += arrived
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read_dump(process, connection))

    def _read_rest(self, process: TestProcess) -> None:
        """Read what a process that has ended still had on its way: news of its exit may overtake its messages."""
        if (messages := process.messages) is not None:
            while not messages.closed and self._read_test(process, messages):
                pass
        if process.crash_socket is not None:
            self._read_dump(process, process.crash_socket)

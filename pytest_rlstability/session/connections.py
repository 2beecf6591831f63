"""pytest's end of every connection to the processes of a run, read in one place."""

from __future__ import annotations

import secrets
import selectors
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pytest_rlstability.child.output import output_paths
from pytest_rlstability.model.lock_waits import update_waits
from pytest_rlstability.model.messages import (
    FixturesTornDown,
    Hello,
    LockTaken,
    LockWait,
    LockWaitEnded,
    Message,
    PrepareInterpreter,
    ProcessEnded,
    ProtocolError,
    Quit,
    StartFailed,
    TestDone,
    ThreadStarted,
)
from pytest_rlstability.model.progress_counters import ProcessCounters, ProgressCounters
from pytest_rlstability.model.run import Exit
from pytest_rlstability.osinfo.message_socket import Endpoint, MessageSocket, accept, is_own_user, listen
from pytest_rlstability.osinfo.process_control import end_tree


@dataclass
class TestProcess:
    """What pytest's process knows of one test process."""

    __test__ = False

    serial: int
    counters: ProcessCounters
    stdout: Path
    stderr: Path
    pid: int = 0
    first_order: PrepareInterpreter | None = None
    """Sent as soon as the process connects."""
    messages: MessageSocket | None = None
    crash_socket: socket.socket | None = None
    unread: list[Message] = field(default_factory=list)
    crash_dump: bytearray = field(default_factory=bytearray)
    thread_names: dict[int, str] = field(default_factory=dict)
    native_names: dict[int, str] = field(default_factory=dict)
    daemon_threads: set[int] = field(default_factory=set)
    inherited_threads: set[int] = field(default_factory=set)
    lock_waits: dict[int, LockWait] = field(default_factory=dict)
    refused: StartFailed | None = None
    """Why its parent did not start it."""
    exit: Exit | None = None
    killed: bool = False
    """Whether we asked for it to be killed."""

    @property
    def ready(self) -> bool:
        return self.messages is not None and self.crash_socket is not None

    def send(self, message: Message) -> None:
        """Send *message* to the process; one that died before it connected gets nothing."""
        if self.messages is not None:
            self.messages.send(message)

    def take_messages(self, *, one_test: bool = False) -> list[Message]:
        """What has arrived; of *one_test* only, if the process may already run the next one."""
        end = len(self.unread)
        if one_test:
            ends = (number for number, one in enumerate(self.unread, 1) if isinstance(one, TestDone) and one.stays)
            end = next(ends, end)
        taken, self.unread = self.unread[:end], self.unread[end:]
        return taken

    def handle(self, message: Message) -> None:
        """Keep one message, or what it says about the process itself."""
        match message:
            case ThreadStarted():
                self._add_thread(message)
            case LockWait() | LockTaken() | LockWaitEnded():
                update_waits(self.lock_waits, message)
            case _:
                self.unread.append(message)

    def _add_thread(self, thread: ThreadStarted) -> None:
        self.thread_names[thread.ident] = thread.name
        self.native_names[thread.native] = thread.name
        if thread.daemon:
            self.daemon_threads.add(thread.native)
        if thread.inherited:
            self.inherited_threads.add(thread.native)


@dataclass
class ParentLink:
    """What pytest's process knows of a parent of test processes."""

    messages: MessageSocket
    pid: int = 0
    serials: set[int] = field(default_factory=set)
    torn_down: list[FixturesTornDown] = field(default_factory=list)
    """What it said of the wide fixtures that it has torn down."""


class Connections:
    """Accepts the run's processes and turns what arrives into the state of ``TestProcess`` objects.

    ``pump(timeout)`` waits for something to arrive, at most *timeout* seconds, and takes it in. It is the only place
    where pytest's process waits for a test.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        directory = Path(tempfile.mkdtemp(prefix="rlstability-"))
        self._clock = clock
        self._counters = ProgressCounters(directory)
        self._server, address = listen(directory)
        self.endpoint = Endpoint(address, secrets.token_hex(8), directory)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ, self._accept)
        self._processes: dict[int, TestProcess] = {}
        self._serial = 0
        self.parents: list[ParentLink] = []

    @property
    def directory(self) -> Path:
        return self.endpoint.directory

    def expect(self) -> TestProcess:
        """A place for a process that is about to be started."""
        self._serial += 1
        stdout, stderr = output_paths(self.directory, self._serial)
        process = TestProcess(self._serial, self._counters.of_process(self._serial), stdout, stderr)
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
        for path in (process.stdout, process.stderr):
            path.unlink(missing_ok=True)

    def listen_to(self, process: TestProcess) -> None:
        """Take in the process's messages as they come. Until then they wait for its end: most tests are over before
        anybody could act on a message, and every wake-up costs time."""
        messages = process.messages
        if messages is not None and not messages.closed and messages.fileno() not in self._selector.get_map():
            self._selector.register(messages, selectors.EVENT_READ, lambda: self._read_test(process, messages))

    def pump(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
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

    def close(self) -> None:
        """Close every connection and remove the directory of the run."""
        self.abandon()
        shutil.rmtree(self.directory, ignore_errors=True)

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

    def _accept(self) -> None:
        connection = accept(self._server)
        if not is_own_user(connection):
            connection.close()
            return
        connection.setblocking(False)
        messages = MessageSocket(connection)
        self._selector.register(messages, selectors.EVENT_READ, lambda: self._greet(messages, connection))
        self._greet(messages, connection)  # the first message is mostly there already

    def _greet(self, messages: MessageSocket, connection: socket.socket) -> None:
        """The first message of a new connection says whose it is. A stranger's connection is closed."""
        try:
            arrived = messages.drain()
        except ProtocolError:
            messages.closed, arrived = True, []
        if not arrived and not messages.closed:
            return
        self._unwatch(messages)
        match arrived:
            case [Hello(role="parent", token=self.endpoint.token, pid=pid), *rest]:
                self._add_parent(messages, pid, rest)
            case [Hello(role=role, token=self.endpoint.token, serial=serial, pid=pid), *rest] if (
                process := self._processes.get(serial)
            ):
                if role == "test":
                    self._add_test(process, messages, pid, rest)
                else:
                    self._add_crash_socket(process, connection)
            case _:
                messages.close()

    def _add_parent(self, messages: MessageSocket, pid: int, arrived: list[Message]) -> None:
        parent = ParentLink(messages, pid)
        self.parents.append(parent)
        self._handle_parent(parent, arrived)
        self._selector.register(messages, selectors.EVENT_READ, lambda: self._read_parent(parent))

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
                        process.exit = Exit(status, peak, strays)
                        self._read_rest(process)
                case _:
                    raise ProtocolError(f"a parent of test processes does not send {type(message).__name__}")

    def _add_test(self, process: TestProcess, messages: MessageSocket, pid: int, arrived: list[Message]) -> None:
        process.messages, process.pid = messages, pid
        if process.first_order is not None:
            messages.send(process.first_order)
        for message in arrived:
            process.handle(message)

    def _read_test(self, process: TestProcess, messages: MessageSocket) -> None:
        for message in messages.drain():
            process.handle(message)
        if messages.closed:
            self._unwatch(messages)

    def _add_crash_socket(self, process: TestProcess, connection: socket.socket) -> None:
        process.crash_socket = connection
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read_dump(process, connection))

    def _read_dump(self, process: TestProcess, connection: socket.socket) -> None:
        data = b"more"
        while data:
            try:
                data = connection.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            process.crash_dump += data
        self._unwatch(connection)

    def _read_rest(self, process: TestProcess) -> None:
        """Read what a process that has ended still had on its way: news of its exit may overtake its messages."""
        if process.messages is not None and not process.messages.closed:
            self._read_test(process, process.messages)
        if process.crash_socket is not None:
            self._read_dump(process, process.crash_socket)

    def _unwatch(self, connection: object) -> None:
        try:
            self._selector.unregister(connection)  # type: ignore[arg-type]
        except (KeyError, ValueError):
            return

"""Where the processes of a run meet: pytest's end of every connection, read in one place."""

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

from pytest_rlstability.facts import Exit
from pytest_rlstability.isolation.board import Board, Slot
from pytest_rlstability.isolation.output import output_paths
from pytest_rlstability.isolation.wire import Record, Wire, listen
from pytest_rlstability.locks.cycle import hear as hear_lock


@dataclass
class TestProcess:
    """Pytest's view of one test process."""

    __test__ = False

    serial: int
    slot: Slot
    stdout: Path
    stderr: Path
    pid: int = 0
    brief: Record | None = None
    wire: Wire | None = None
    fault_socket: socket.socket | None = None
    records: list[Record] = field(default_factory=list)
    fault: bytearray = field(default_factory=bytearray)
    threads: dict[int, str] = field(default_factory=dict)
    native_names: dict[int, str] = field(default_factory=dict)
    daemons: set[int] = field(default_factory=set)
    bystanders: set[int] = field(default_factory=set)
    lock_waits: dict[int, Record] = field(default_factory=dict)
    exit: Exit | None = None
    ended: bool = False
    """Whether we had it killed."""

    @property
    def ready(self) -> bool:
        return self.wire is not None and self.fault_socket is not None

    def take_records(self, *, one_test: bool = False) -> list[Record]:
        """What has come; of *one_test*, if a shared process may have gone on to the next."""
        end = len(self.records)
        if one_test:
            end = next((number for number, record in enumerate(self.records, 1) if record["kind"] == "done"), end)
        taken, self.records = self.records[:end], self.records[end:]
        return taken


@dataclass
class KeeperLink:
    """Pytest's view of a keeper process."""

    wire: Wire
    serials: set[int] = field(default_factory=set)


class Hub:
    """Accepts the run's processes and turns what arrives into state of ``TestProcess`` objects.

    ``pump(timeout)`` waits for something to happen, at most *timeout* seconds, and takes it in: the only place
    where pytest's process waits for a test.
    """

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="rlstability-"))
        self.token = secrets.token_hex(8)
        self.board = Board(self.directory)
        self._server, self.address = listen(self.directory)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ, self._accept)
        self._processes: dict[int, TestProcess] = {}
        self._serial = 0
        self.keepers: list[KeeperLink] = []

    def expect(self) -> TestProcess:
        """A place for a process that is about to be born."""
        self._serial += 1
        stdout, stderr = output_paths(self.directory, self._serial)
        process = TestProcess(self._serial, self.board.slot(self._serial), stdout, stderr)
        self._processes[process.serial] = process
        return process

    def pids(self) -> list[int]:
        """Every test's process, and those that wait for a test."""
        return [process.pid for process in self._processes.values()]

    def release(self, process: TestProcess) -> None:
        """Forget a process that has ended, and its files."""
        self._processes.pop(process.serial, None)
        for connection in (process.wire, process.fault_socket):
            if connection is not None:
                self._unwatch(connection)
                connection.close()
        for path in (process.stdout, process.stderr):
            path.unlink(missing_ok=True)

    def listen_to(self, process: TestProcess) -> None:
        """Take in the process's records as they come. Until then they wait for its end: most tests are over before
        anybody could act on them, and every wake-up costs."""
        wire = process.wire
        if wire is not None and not wire.closed and wire.fileno() not in self._selector.get_map():
            self._selector.register(wire, selectors.EVENT_READ, lambda: self._read_test(process, wire))

    def pump(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            key.data()

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Pump until *condition()* holds; False when *timeout* seconds passed first."""
        deadline = time.monotonic() + timeout
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.pump(left)
        return True

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._unwatch(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def drop(self) -> None:
        """In a forked copy of this process: let go of every connection, without a word to the other ends."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def dismiss(self, keeper: KeeperLink) -> None:
        """Close the connection to a keeper; one that lives ends everything then."""
        self._unwatch(keeper.wire)
        keeper.wire.send({"do": "leave"})
        keeper.wire.close()
        if keeper in self.keepers:
            self.keepers.remove(keeper)

    def _accept(self) -> None:
        connection, _ = self._server.accept()
        connection.setblocking(False)
        wire = Wire(connection)
        self._selector.register(wire, selectors.EVENT_READ, lambda: self._greet(wire, connection))
        self._greet(wire, connection)  # the first words are mostly there already

    def _greet(self, wire: Wire, connection: socket.socket) -> None:
        """The first words of a new connection say whose it is."""
        records = wire.drain()
        if not records and not wire.closed:
            return
        self._unwatch(wire)
        if not records or records[0].get("token") != self.token:
            wire.close()
            return
        hello, *rest = records
        if hello["role"] == "keeper":
            self._adopt_keeper(wire, rest)
        elif (process := self._processes.get(hello["serial"])) is None:
            wire.close()
        elif hello["role"] == "test":
            self._adopt_test(process, wire, hello["pid"], rest)
        else:
            self._adopt_fault_socket(process, connection)

    def _adopt_keeper(self, wire: Wire, early: list[Record]) -> None:
        keeper = KeeperLink(wire)
        self.keepers.append(keeper)
        self._hear_keeper(early)
        self._selector.register(wire, selectors.EVENT_READ, lambda: self._read_keeper(keeper))

    def _read_keeper(self, keeper: KeeperLink) -> None:
        self._hear_keeper(keeper.wire.drain())
        if keeper.wire.closed:
            self.lose(keeper)

    def lose(self, keeper: KeeperLink) -> None:
        """A keeper has died, and its processes with it."""
        self.dismiss(keeper)
        for serial in keeper.serials:
            process = self._processes.get(serial)
            if process is not None and process.exit is None:
                process.exit = Exit(None)

    def _hear_keeper(self, records: list[Record]) -> None:
        for record in records:
            process = self._processes.get(record["serial"])
            if process is not None:
                process.exit = Exit(record["status"], record["peak"], record["leftovers"])
                self._take_last_words(process)

    def _adopt_test(self, process: TestProcess, wire: Wire, pid: int, early: list[Record]) -> None:
        process.wire, process.pid = wire, pid
        if process.brief is not None:
            wire.send(process.brief)
        self._hear_test(process, early)

    def _read_test(self, process: TestProcess, wire: Wire) -> None:
        self._hear_test(process, wire.drain())
        if wire.closed:
            self._unwatch(wire)

    def _hear_test(self, process: TestProcess, records: list[Record]) -> None:
        for record in records:
            if record["kind"] == "thread":
                process.threads[record["ident"]] = record["name"]
                process.native_names[record["native"]] = record["name"]
                if record["daemon"]:
                    process.daemons.add(record["native"])
                if record["before"]:
                    process.bystanders.add(record["native"])
            elif record["kind"] == "lock":
                hear_lock(process.lock_waits, record)
            else:
                process.records.append(record)

    def _adopt_fault_socket(self, process: TestProcess, connection: socket.socket) -> None:
        process.fault_socket = connection
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read_fault(process, connection))

    def _read_fault(self, process: TestProcess, connection: socket.socket) -> None:
        data = b"more"
        while data:
            try:
                data = connection.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            process.fault += data
        self._unwatch(connection)

    def _take_last_words(self, process: TestProcess) -> None:
        """Read what the dead process still has in flight: news of its exit may overtake its words."""
        if process.wire is not None and not process.wire.closed:
            self._read_test(process, process.wire)
        if process.fault_socket is not None:
            self._read_fault(process, process.fault_socket)

    def _unwatch(self, connection: object) -> None:
        try:
            self._selector.unregister(connection)  # type: ignore[arg-type]
        except (KeyError, ValueError):
            return

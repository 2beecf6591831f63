"""pytest's end of the connections, with sockets of this test's own at the other ends."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from pytest_rlstability.model.messages import (
    LONGEST_MESSAGE,
    CleanExit,
    Finish,
    Hello,
    InternalError,
    LockWait,
    LockWaitEnded,
    PrepareInterpreter,
    ProcessEnded,
    ProtocolError,
    Quit,
    StageEntered,
    TestDone,
    ThreadStarted,
    encode,
)
from pytest_rlstability.model.run import Exit
from pytest_rlstability.osinfo.endpoint import Endpoint
from pytest_rlstability.osinfo.message_socket import MessageSocket, connect
from pytest_rlstability.session.connections import Connections
from pytest_rlstability.session.test_process import TestProcess

DONE = TestDone(laps=0, continues=True)
PID = 2**22 + 1
"""No process has a number as large as this."""


@pytest.fixture
def connections() -> Iterator[Connections]:
    opened = Connections().open()
    yield opened
    opened.close()
    assert not opened.directory.exists()


class Peer:
    """The other end of one connection."""

    def __init__(self, connections: Connections, hello: Hello | None) -> None:
        self.socket = connect(connections.endpoint.address)
        self.messages = MessageSocket(self.socket)
        if hello is not None:
            self.messages.send(hello)
        connections.pump(1)

    def is_closed(self) -> bool:
        self.socket.settimeout(1)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


def test_process(connections: Connections, process: TestProcess) -> tuple[Peer, Peer]:
    token = connections.endpoint.token
    test = Peer(connections, Hello("test", token, process.serial, pid=PID))
    return test, Peer(connections, Hello("crash_dump", token, process.serial))


test_process.__test__ = False  # type: ignore[attr-defined]


def parent_of(connections: Connections, *processes: TestProcess) -> Peer:
    parent = Peer(connections, Hello("parent", connections.endpoint.token))
    connections.parents[-1].serials.update(process.serial for process in processes)
    return parent


def test_a_process_is_ready_when_both_its_connections_are_there(connections):
    process = connections.expect()
    assert not process.ready
    test_process(connections, process)
    assert process.ready
    assert process.pid == PID
    assert connections.pids() == [PID]


def test_a_fresh_interpreter_gets_its_first_order_at_once(connections):
    process = connections.expect()
    process.first_order = PrepareInterpreter([], "", "", [], [], None, None, False, 0, None, ())
    peer, _ = test_process(connections, process)
    assert peer.messages.receive() == process.first_order


@pytest.mark.parametrize(
    "hello",
    [b"", b"\n", b"[1]\n", b"{}\n", b"hello\n", b"\xff\xfe\n", b'["Hello", {"role": "parent", "token": "wrong"}]\n',
     b'["Hello", {"role": "parent", "token": "\xc3\xbc"}]\n', b'["Hello", {"role": "parent", "token": ["TOKEN"]}]\n',
     b'["Finish", {}]\n', b'["Hello", {"role": "test", "token": "TOKEN", "serial": 99}]\n', b"9" * 4000 + b"\n",
     b'["Hello", {"role": "test", "token": "TOKEN", "serial": [1]}]\n', b"[" * 4000 + b"\n", b"x" * 100_000,
     b'["Hello", {"role": "test", "token": "TOKEN", "serial": 1, "pid": "1"}]\n'],
    ids=lambda hello: hello[:60].decode(errors="replace"),
)  # fmt: skip
def test_a_stranger_is_sent_away_and_harms_nobody(connections, hello):
    process = connections.expect()
    stranger = Peer(connections, None)
    with suppress(BrokenPipeError):  # it was sent away before it had said everything
        stranger.socket.sendall(hello.replace(b"TOKEN", connections.endpoint.token.encode()))
        stranger.socket.shutdown(socket.SHUT_WR)
    connections.pump(1)
    connections.pump(0)
    assert stranger.is_closed()
    assert not process.ready
    assert connections.parents == []
    test_process(connections, process)
    assert process.ready


def test_many_who_connect_and_say_nothing_take_no_more_than_a_few_descriptors(connections):
    process = connections.expect()
    strangers = [Peer(connections, None) for _ in range(100)]
    assert strangers[0].is_closed()
    test_process(connections, process)
    assert process.ready
    for stranger in strangers:
        stranger.socket.close()


def test_a_crash_that_follows_its_greeting_at_once_is_kept(connections):
    process = connections.expect()
    peer = Peer(connections, None)
    hello = encode(Hello("crash_dump", connections.endpoint.token, process.serial))
    peer.socket.sendall(f"{hello}\nFatal Python error".encode())
    connections.pump(1)
    assert bytes(process.crash_dump) == b"Fatal Python error"


@pytest.mark.parametrize(
    "line", [b"[1]\n", b'["Unheard", {}]\n', b"x" * (2 * LONGEST_MESSAGE)], ids=["json", "kind", "long"]
)
def test_what_a_test_writes_to_our_descriptors_is_its_own_error(connections, line):
    process = connections.expect()
    peer, _ = test_process(connections, process)
    connections.listen_to(process)
    sender = threading.Thread(target=peer.socket.sendall, args=[line])
    sender.start()
    connections.wait_until(lambda: bool(process.unread) and not sender.is_alive(), 60, look_every=0.1)
    sender.join()
    peer.messages.send(Finish())
    connections.pump(1)
    (error, *_, last) = process.take_messages()
    assert isinstance(error, InternalError)
    assert last == Finish()


def test_a_fresh_interpreter_reads_the_endpoint_where_only_its_user_can(connections):
    directory = connections.directory
    assert Endpoint.load(str(directory)) == connections.endpoint
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "endpoint").stat().st_mode) == 0o600


def test_a_long_temporary_directory_does_not_make_the_socket_s_path_too_long(tmp_path, monkeypatch):
    long = tmp_path / ("d" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    connections = Connections().open()
    assert connections.directory.parent != long
    connections.close()
    assert not connections.directory.exists()
    assert list(long.iterdir()) == []


def test_messages_wait_until_somebody_listens(connections):
    process = connections.expect()
    peer, _ = test_process(connections, process)
    peer.messages.send(StageEntered(("a",)))
    connections.pump(0)
    assert process.take_messages() == []
    connections.listen_to(process)
    connections.pump(1)
    assert process.take_messages() == [StageEntered(("a",))]


def test_the_messages_of_one_test_end_with_its_last(connections):
    process = connections.expect()
    for message in (StageEntered(("a",)), DONE, StageEntered(("next test",)), DONE):
        process.handle(message)
    assert process.take_messages(one_test=True) == [StageEntered(("a",)), DONE]
    assert process.take_messages(one_test=True) == [StageEntered(("next test",)), DONE]
    assert process.take_messages(one_test=True) == []


def test_a_process_that_ends_early_has_no_next_test_whose_messages_could_follow(connections):
    process = connections.expect()
    last = [replace(DONE, stays=False), CleanExit()]
    for message in last:
        process.handle(message)
    assert process.take_messages(one_test=True) == last


def test_threads_and_locks_become_state_of_the_process(connections):
    process = connections.expect()
    process.handle(ThreadStarted(1, 10, "MainThread", daemon=False, inherited=False))
    process.handle(ThreadStarted(2, 20, "pool", daemon=True, inherited=True))
    process.handle(LockWait(2, 20, "pool", 7, "a lock", "t.py:1", endless=True, holds=[]))
    assert process.thread_names == {1: "MainThread", 2: "pool"}
    assert process.native_names == {10: "MainThread", 20: "pool"}
    assert (process.daemon_threads, process.inherited_threads) == ({20}, {20})
    assert list(process.lock_waits) == [2]
    process.handle(LockWaitEnded(2))
    assert process.lock_waits == {}
    assert process.take_messages() == []


def test_news_of_an_exit_does_not_overtake_the_last_messages(connections):
    process = connections.expect()
    test, crash_dump = test_process(connections, process)
    parent = parent_of(connections, process)
    test.messages.send(CleanExit())
    crash_dump.socket.sendall(b"Fatal Python error")
    parent.messages.send(ProcessEnded(process.serial, -11, 4096, ("sleep",)))
    assert connections.wait_until(lambda: process.exit is not None, 1)
    assert process.exit == Exit(-11, 4096, ("sleep",))
    assert process.take_messages() == [CleanExit()]
    assert bytes(process.crash_dump) == b"Fatal Python error"


def test_a_parent_that_dies_takes_its_processes_along_but_not_their_messages(connections):
    lost, other = connections.expect(), connections.expect()
    test, _ = test_process(connections, lost)
    parent = parent_of(connections, lost)
    test.messages.send(DONE)
    parent.socket.close()
    assert connections.wait_until(lambda: lost.exit is not None, 1)
    assert lost.exit == Exit(None)
    assert lost.take_messages() == [DONE]
    assert other.exit is None
    assert connections.parents == []


def test_what_the_tests_of_a_dead_parent_had_started_is_ended(connections):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as left:
        lost = connections.expect()
        lost.pid = left.pid  # the session is the test's
        parent_of(connections, lost).socket.close()
        assert connections.wait_until(lambda: lost.exit is not None, 1)
        assert left.wait(10) == -9


def test_a_parent_is_told_to_quit(connections):
    parent = parent_of(connections)
    connections.dismiss(connections.parents[0])
    assert parent.messages.receive() == Quit()
    assert parent.messages.receive() is None


def test_a_parent_sends_nothing_but_ends(connections):
    parent_of(connections).messages.send(Finish())
    with pytest.raises(ProtocolError, match="Finish"):
        connections.pump(1)


def test_a_released_process_leaves_no_files(connections):
    process = connections.expect()
    test, crash_dump = test_process(connections, process)
    process.stdout.write_text("out")
    connections.release(process)
    assert not process.stdout.exists()
    assert test.is_closed()
    assert crash_dump.is_closed()
    assert connections.pids() == []


def test_waiting_ends_when_the_time_is_over():
    times = iter([0.0, 0.5, 3.0])
    connections = Connections(clock=lambda: next(times)).open()
    pumped: list[float | None] = []
    connections.pump = pumped.append  # type: ignore[method-assign]
    assert not connections.wait_until(lambda: False, 2.0)
    assert pumped == [1.5]
    connections.close()

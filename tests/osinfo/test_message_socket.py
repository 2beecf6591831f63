"""Messages between processes: whole, in order, and safe against what tests put into them."""

from __future__ import annotations

import socket
import threading

import pytest

from pytest_rlstability.model.messages import Finish, PhaseReported, StageEntered
from pytest_rlstability.osinfo import message_socket
from pytest_rlstability.osinfo.message_socket import MessageSocket


@pytest.fixture
def ends():
    left, right = socket.socketpair()
    right.setblocking(False)
    yield MessageSocket(left), MessageSocket(right), left
    left.close()
    right.close()


def test_messages_arrive_whole_and_in_order(ends):
    sender, receiver, _ = ends
    for number in range(100):
        assert sender.send(StageEntered((str(number), "\ud800 \n ü")))
    messages = receiver.drain()
    assert messages == [StageEntered((str(number), "\ud800 \n ü")) for number in range(100)]
    assert not receiver.closed


def test_what_was_sent_before_the_end_is_read_after_it(ends):
    sender, receiver, raw = ends
    sender.send(Finish())
    raw.sendall(b'["StageEntered", {"path')
    sender.close()
    assert receiver.drain() == [Finish()]
    assert receiver.closed
    assert not receiver.send(Finish())


def test_a_message_cut_short_spoils_only_itself(ends):
    sender, receiver, raw = ends
    raw.sendall(b'\n["StageEntered", {"path": ["interrupted by a sig')
    sender.send(Finish())
    assert receiver.drain() == [Finish()]


def test_a_line_that_is_not_one_of_our_messages_is_an_error(ends):
    sender, receiver, raw = ends
    raw.sendall(b'["Unheard", {}]\n')
    sender.send(Finish())
    error, last = receiver.drain()
    assert "Unheard" in error.traceback
    assert last == Finish()


def test_receive_waits_for_one_message_at_a_time(ends):
    _, other, raw = ends
    peer = MessageSocket(raw)
    other.send(StageEntered(("1",)))
    other.send(StageEntered(("2",)))
    assert (peer.receive(), peer.receive()) == (StageEntered(("1",)), StageEntered(("2",)))
    other.close()
    assert peer.receive() is None


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


def test_a_message_with_values_that_json_does_not_know_arrives(ends):
    sender, receiver, _ = ends
    circle: list[object] = ["round"]
    circle.append(circle)
    assert sender.send(PhaseReported({"odd keys": {(1, 2): Unprintable()}, "circle": circle}))
    (message,) = receiver.drain()
    assert message.report["odd keys"] == {"(1, 2)": "<unprintable Unprintable>"}
    assert message.report["circle"][0] == "round"


def test_room_is_gone_before_a_short_message_would_have_to_wait(ends):
    sender, receiver, _ = ends
    sent = 0
    while sender.has_room():
        sender.send(Finish())
        sent += 1
    assert len(receiver.drain()) == sent > 10
    assert sender.has_room(None)


def test_a_message_larger_than_the_buffer_is_sent_as_fast_as_it_is_read(ends):
    reader, sender, _ = ends
    message = StageEntered(("x" * 3_000_000,))
    received: list[object] = []
    thread = threading.Thread(target=lambda: received.append(reader.receive()))
    thread.start()
    assert sender.send(message)
    thread.join()
    assert received == [message]


def test_a_reader_that_does_not_read_is_given_up(ends, monkeypatch):
    monkeypatch.setattr(message_socket, "_SEND_LIMIT", 0.01)
    _, sender, _ = ends
    assert not sender.send(StageEntered(("x" * 3_000_000,)))
    assert sender.closed


def test_what_a_dead_sender_had_sent_is_completed_from_its_copy(ends, tmp_path):
    sender, receiver, raw = ends
    with open(tmp_path / "sent", "wb", buffering=0) as copy:
        sender.keep_copy(copy.fileno())
        sender.send(StageEntered(("arrived",)))
        assert receiver.drain() == [StageEntered(("arrived",))]
        raw.close()  # what is sent from here on does not arrive
        sender.send(StageEntered(("dropped",)))
    sent = (tmp_path / "sent").read_bytes()
    assert receiver.dropped(sent) == [StageEntered(("dropped",))]
    assert receiver.dropped(sent) == []

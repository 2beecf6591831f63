"""Records between processes: whole, in order, and safe against what tests put into them."""

from __future__ import annotations

import socket

import pytest

from pytest_rlstability.isolation.wire import Wire, plain, printable


@pytest.fixture
def ends():
    left, right = socket.socketpair()
    right.setblocking(False)
    yield Wire(left), Wire(right), left
    left.close()
    right.close()


def test_records_arrive_whole_and_in_order(ends):
    sender, receiver, _ = ends
    for number in range(100):
        assert sender.send({"kind": "sample", "number": number, "text": "\ud800 \n ü"})
    records = receiver.drain()
    assert [record["number"] for record in records] == list(range(100))
    assert records[0]["text"] == "\ud800 \n ü"
    assert not receiver.closed


def test_what_was_said_before_the_end_is_heard_after_it(ends):
    sender, receiver, raw = ends
    sender.send({"kind": "stage"})
    raw.sendall(b'{"kind": "cut sho')
    sender.close()
    assert receiver.drain() == [{"kind": "stage"}]
    assert receiver.closed
    assert not receiver.send({"kind": "anybody?"})


def test_a_record_cut_short_spoils_only_itself(ends):
    sender, receiver, raw = ends
    raw.sendall(b'\n{"kind": "interrupted by a sig')
    sender.send({"kind": "next"})
    assert receiver.drain() == [{"kind": "next"}]


def test_receive_waits_for_one_record_at_a_time(ends):
    _, other, raw = ends
    peer = Wire(raw)
    other.send({"number": 1})
    other.send({"number": 2})
    assert (peer.receive(), peer.receive()) == ({"number": 1}, {"number": 2})
    other.close()
    assert peer.receive() is None


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


def test_values_json_does_not_know():
    assert printable(Unprintable()) == "<unprintable Unprintable>"
    mixed = {
        1: {
            2,
        },
        (1, 2): [object, Unprintable()],
        "fine": [1, "x", None],
    }
    flat = plain(mixed, printable)
    assert flat["fine"] == [1, "x", None]
    assert flat["1"] == "{2}"
    assert flat["(1, 2)"] == ["<class 'object'>", "<unprintable Unprintable>"]


def test_a_record_of_such_values_arrives(ends):
    sender, receiver, _ = ends
    circle: list[object] = ["round"]
    circle.append(circle)
    assert sender.send({"kind": "report", "odd keys": {(1, 2): Unprintable()}, "circle": circle})
    (record,) = receiver.drain()
    assert record["odd keys"] == {"(1, 2)": "<unprintable Unprintable>"}
    assert record["circle"][0] == "round"

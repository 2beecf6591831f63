"""Every kind of message survives the trip to another process, and nothing else is taken for one."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from pytest_rlstability.model import messages
from pytest_rlstability.model.json_text import plain, printable
from pytest_rlstability.model.messages import ProtocolError, decode, encode

KINDS = list(messages._KINDS.values())
EXAMPLES: dict[str, Any] = {"bool": True, "int": 7, "float": 0.5, "str": "text ü", "tuple": ("a", "b"), "list": ["a"]}


def example(kind: type) -> Any:
    """A message of *kind* with a value in every field."""
    values = {}
    for field in fields(kind):
        word = str(field.type).split("[")[0].split(" ")[0]
        values[field.name] = EXAMPLES.get(word, {"key": 1.0} if word in ("dict", "Json") else ["a"])
    return kind(**values)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_comes_back_as_it_was_sent(kind):
    message = example(kind)
    assert decode(encode(message)) == message
    assert "\n" not in encode(message)


def test_every_message_class_of_the_module_is_known():
    classes = {
        name
        for name, value in vars(messages).items()
        if isinstance(value, type) and hasattr(value, "__dataclass_fields__")
    }
    assert classes == {kind.__name__ for kind in KINDS}


@pytest.mark.parametrize(
    "line",
    ['["Nobody", {}]', "[1]", "{}", "7", '["TestDone", {"laps": 1}]', '["Finish", {"more": 1}]', '["Finish", []]',
     '["StageEntered", {"path": null}]', '["Finish", {}, 3]'],
)  # fmt: skip
def test_what_is_not_one_of_our_messages_is_an_error(line):
    with pytest.raises(ProtocolError, match="not a message of ours"):
        decode(line)


def test_what_is_not_json_is_a_value_error():
    with pytest.raises(ValueError):
        decode('["Finish", {')


@pytest.mark.parametrize(
    "report",
    [
        lambda: {"longrepr": "x" * 10_000_000},
        lambda: {"longrepr": {"lines": ["\0" * 100_000] * 100}},
        lambda: {"user_properties": [[str(number), "v"] for number in range(1_000_000)]},
        lambda: {"keywords": {str(number): 1 for number in range(1_000_000)}},
    ],
    ids=["text", "escaped", "list", "object"],
)
def test_a_report_that_is_too_long_is_cut_and_says_so(report):
    line = encode(messages.PhaseReported({"outcome": "failed", "sections": [["out", "kept"]], **report()}))
    assert len(line) <= messages.LONGEST_MESSAGE
    message = decode(line)
    assert isinstance(message, messages.PhaseReported)
    assert message.report["outcome"] == "failed"
    first, note = message.report["sections"]
    assert first == ["out", "kept"]
    assert note[1].startswith("Parts of this report were left out: it had ")


def test_text_that_is_cut_keeps_both_ends():
    message = decode(encode(messages.InternalError("begin" + "x" * 10_000_000 + "end")))
    assert isinstance(message, messages.InternalError)
    assert message.traceback.startswith("begin")
    assert "characters left out by rl-stability" in message.traceback
    assert message.traceback.endswith("end")


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

"""Recorded values come back as they were, and nothing else is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.pyboy.recording import pack, replay, unpack


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 1.5, "a", b"\x00\xff", (1, (2, 3)), [1, [2]], slice(1, 9, None), {"a": (1,), 2: b"x"}],
    ids=repr,
)
def test_round_trip(value: Any) -> None:
    assert unpack(json.loads(json.dumps(pack(value)))) == value


def test_numpy_numbers_become_plain() -> None:
    numpy = pytest.importorskip("numpy")
    assert pack(numpy.uint8(3)) == 3
    assert pack(numpy.arange(3)) == [0, 1, 2]


def test_what_is_not_data_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be part of a recorded session"):
        pack(object())


@pytest.mark.parametrize("text", ["", "[]\n", '{"schema": 99}\n', '{"schema"'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "not-a-session.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a recorded session"):
        replay(path)

"""Values as people write them, and markers as functions."""

from __future__ import annotations

import pytest

from pytest_rlstability.config import markers
from pytest_rlstability.model.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("30s", 30), ("30 s", 30), ("10min", 600), ("8h", 28800), ("0", 0), (2.5, 2.5), ("1.5 h", 5400)],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1 fortnight", "1s1s", float("nan"), float("inf"), True, None])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="is not a duration such as"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512", 512), (512, 512), ("1KiB", 1024), ("1 KiB", 1024), ("2MB", 2_000_000), ("2 GiB", 2**31), ("1.5k", 1536)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "banana", "-1", "1 KiBs", -1, True, None])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="is not a size such as"):
        parse_size(text)


def test_values_are_shown_as_people_say_them():
    assert [format_duration(value) for value in (0.0123, 0.25, 3.21, 75, 150, 605, 3600, 3900)] == [
        "12.3 ms", "0.25 s", "3.21 s", "75 s", "2 min 30 s", "10 min", "1 h", "1 h 5 min",
    ]  # fmt: skip
    assert [format_size(value) for value in (0, 512, 1536, 2**30, -2048)] == [
        "0 B", "512 B", "1.5 KiB", "1.0 GiB", "-2.0 KiB",
    ]  # fmt: skip


def test_markers_parse_what_their_signature_says():
    isolated = markers.rl_isolated(memory="1KiB", env={"B": "2", "A": "1"}, group="module")
    assert (isolated.memory, isolated.env, isolated.group) == (1024, (("A", "1"), ("B", "2")), "module")
    assert markers.rl_no_stall("250ms").after == 0.25
    assert markers.rl_no_leak("1KiB", signals="fds", laps=5).signals == ("fds",)
    assert markers.forked() == markers.rl_isolated()


def test_every_marker_documents_itself():
    lines = markers.marker_lines()
    assert len(lines) == len(markers.MARKERS)
    for line, marker in zip(lines, markers.MARKERS, strict=True):
        assert line.startswith(marker)
        assert len(line.partition(": ")[2]) > 20

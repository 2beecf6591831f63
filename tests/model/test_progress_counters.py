"""Counters in a file that several processes map."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_rlstability.model.progress_counters import ProgressCounters


def test_what_one_process_counts_another_reads(tmp_path: Path) -> None:
    counters, seen = (ProgressCounters(tmp_path).of_process(3) for _ in range(2))
    counters.begin()
    counters.beat()
    counters.lap(7)
    assert (seen.beats, seen.laps, seen.phase, seen.beating) == (2, 7, "start", True)
    counters.enter("call")
    assert (seen.beats, seen.laps, seen.phase, seen.beating) == (2, 7, "call", False)
    assert ProgressCounters(tmp_path).of_process(4).beats == 0
    counters.clear()
    assert (seen.beats, seen.laps, seen.phase) == (0, 0, "start")


def test_a_test_that_writes_over_the_counters_breaks_no_reader(tmp_path: Path) -> None:
    seen = ProgressCounters(tmp_path).of_process(3)
    with open(tmp_path / "counters", "r+b") as file:
        file.write(b"\xff" * 4096)
    assert seen.phase == "start"
    assert isinstance(seen.phase_seconds, float)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not say how many blocks a file has")
def test_the_counters_have_their_room_on_the_disk(tmp_path: Path) -> None:
    ProgressCounters(tmp_path)
    assert (tmp_path / "counters").stat().st_blocks > 0

"""Counters in a file that several processes map."""

from __future__ import annotations

from pathlib import Path

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

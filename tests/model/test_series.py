"""Samples in preallocated memory, and how they are shown."""

from __future__ import annotations

import math
import sys
from itertools import pairwise

import pytest

from pytest_rlstability.model.series import SampleTable, Series, sparkline


def test_a_full_series_keeps_the_lower_of_two_neighbours_and_the_first() -> None:
    series = Series(capacity=4)
    for lap, value in enumerate([5, 9, 3, 8, 7]):
        series.add(lap, value)
    assert list(zip(series.laps, series.values, strict=True)) == [(0, 5), (2, 3), (3, 8), (4, 7)]


def test_merging_keeps_a_line_a_line() -> None:
    series = Series(capacity=64)
    for lap in range(1000):
        series.add(lap, 3 * lap)
    assert all(value == 3 * lap for lap, value in zip(series.laps, series.values, strict=True))
    assert series.growth == 3 * 999


def test_a_sample_does_not_allocate() -> None:
    series = Series()
    for lap in range(600):
        series.add(lap, 1.0)
    before = sys.getallocatedblocks()
    for lap in range(600, 5000):
        series.add(lap, 1.0)
    assert sys.getallocatedblocks() - before < 20


# Tables


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 63, 64, 1000, 12_345])
@pytest.mark.parametrize("reserve", [False, True])
def test_a_table_is_bounded_even_and_keeps_its_ends(count: int, reserve: bool) -> None:
    table = SampleTable(64, reserve=reserve)
    for lap in range(count):
        table.add(lap, lap / 4, {"rss": 3.0 * lap})
    laps = list(table.laps)
    assert len(table) == len(laps) <= 64
    assert len(table) >= min(count, 32)
    assert [*laps[:2], laps[-1]] == [*range(count)[:2], count - 1]
    assert len({after - before for before, after in pairwise(laps[1:-1])}) <= 1
    assert list(table.seconds) == [lap / 4 for lap in laps]
    assert list(table.column("rss")) == [3 * lap for lap in laps]
    assert table.samples == count


def test_a_signal_that_comes_late_or_goes() -> None:
    table = SampleTable(16)
    for lap in range(40):
        table.add(lap, lap, {"always": lap, **({"late": lap} if lap > 19 else {"early": lap})})
    assert sorted(table.names) == ["always", "early", "late"]
    for lap, early, late in zip(table.laps, table.column("early"), table.column("late"), strict=True):
        assert (math.isnan(early), math.isnan(late)) == (lap > 19, lap <= 19)
    assert table.column("never") == ()


def test_the_newest_lap_is_replaced_and_an_older_one_left_out() -> None:
    table = SampleTable(8)
    for lap, value in [(0, 1), (0, 2), (1, 3), (1, 4), (0, 9), (2, 5)]:
        table.add(lap, lap, {"n": value})
    assert list(zip(table.laps, table.column("n"), strict=True)) == [(0, 1), (0, 2), (1, 4), (2, 5)]


def test_a_reserved_table_does_not_allocate() -> None:
    table, values = SampleTable(64, reserve=True), {"a": 1.0, "b": 2.0}
    for lap in range(200):
        table.add(lap, lap, values)
    before = sys.getallocatedblocks()
    for lap in range(200, 5000):
        table.add(lap, lap, values)
    assert sys.getallocatedblocks() - before < 20


@pytest.mark.skipif(sys.platform == "win32", reason="bars are plain characters on a terminal of Windows")
def test_a_sparkline_shows_the_course() -> None:
    assert sparkline([0, 1, 2, 3], width=4) == "▁▃▆█"
    assert sparkline([7, 7, 7]) == "▁▁▁"
    assert sparkline([]) == ""

"""Samples in preallocated memory, and how they are shown."""

from __future__ import annotations

import sys

from pytest_rlstability.leaks.series import Series, sparkline


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


def test_a_sparkline_shows_the_course() -> None:
    assert sparkline([0, 1, 2, 3], width=4) == "▁▃▆█"
    assert sparkline([7, 7, 7]) == "▁▁▁"
    assert sparkline([]) == ""

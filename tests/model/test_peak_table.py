"""Samples thinned while they arrive: bounded, and no peak or trough is lost."""

from __future__ import annotations

import math
import random

import pytest

from pytest_rlstability.model.series import CAPACITY, LAP_TIME, PeakTable

ROWS = 2 * CAPACITY


def table_of(values, *, at_once=1, rows=ROWS):
    table = PeakTable(rows)
    for start in range(0, len(values), at_once):
        part = values[start : start + at_once]
        laps = list(range(start, start + len(part)))
        table.extend(laps, [lap / 4 for lap in laps], [{"rss": value} for value in part])
    table.finish()
    return table


@pytest.mark.parametrize("count", [1, 2, 3, 7, 200])
def test_few_samples_are_kept_as_they_are(count):
    values = [float(number * number % 17) for number in range(count)]
    table = table_of(values)
    assert list(table.column("rss")) == values
    assert list(table.laps) == list(range(count))
    assert table.samples == count


@pytest.mark.parametrize("at_once", [1, 7, 5000])
def test_many_samples_are_bounded_and_keep_their_extremes(at_once):
    noise = random.Random(1)
    values = [noise.gauss(0, 1) for _ in range(20_011)]
    values[12_345], values[777] = 1000.0, -1000.0
    table = table_of(values, at_once=at_once)
    rows = list(table.column("rss"))
    assert ROWS / 2 <= len(rows) <= ROWS + 2
    assert max(rows) == 1000.0
    assert min(rows) == -1000.0
    assert abs(table.laps[rows.index(1000.0)] - 12_345) <= 2 * 20_011 / ROWS * 2
    assert (table.laps[0], table.laps[-1]) == (0, 20_010)
    assert table.samples == 20_011


def test_resolution_is_even_from_beginning_to_end():
    table = table_of([0.0] * 50_000)
    gaps = [later - earlier for earlier, later in zip(table.laps, table.laps[1:], strict=False)]
    assert max(gaps[:200]) == max(gaps[-210:-10])


def test_a_staircase_keeps_its_order():
    rows = list(table_of([float(number) for number in range(30_000)]).column("rss"))
    assert rows == sorted(rows)


def test_a_signal_that_begins_later_has_no_values_before():
    table = PeakTable()
    table.extend([0, 1], [0, 1], [{"rss": 1.0}, {"rss": 2.0}])
    table.extend([2, 3], [2, 3], [{"rss": 3.0, "food": 9.0}, {"food": 8.0}])
    table.finish()
    assert [math.isnan(value) for value in table.column("food")] == [True, True, False, False]
    assert list(table.column("food"))[2:] == [9.0, 8.0]


def test_lap_time_is_what_passed_between_samples():
    table = PeakTable()
    table.extend([10, 20, 20, 60], [1.0, 2.0, 5.0, 13.0], [{"rss": 1.0}] * 4)
    table.finish()
    times = [value for value in table.column(LAP_TIME) if not math.isnan(value)]
    assert min(times) == pytest.approx(0.1)
    assert max(times) == pytest.approx(0.2)


@pytest.mark.parametrize("values", [{"rss": "much"}, {"rss": None}, {"rss": [1]}])
def test_samples_with_anything_but_numbers_are_refused(values):
    table = PeakTable()
    with pytest.raises(TypeError):
        table.extend([0, 1], [0, 1], [{"rss": 1.0}, values])
    assert table.samples == 0


def test_what_is_not_finite_is_left_out():
    table = PeakTable()
    table.extend([0, 1, 2], [0, 1, 2], [{"rss": 1.0}, {"rss": math.nan, "fds": math.inf}, {"rss": 3.0}])
    table.finish()
    assert {value for value in table.column("rss") if not math.isnan(value)} == {1.0, 3.0}


def test_thinning_further_keeps_extremes():
    values = [0.0] * 900
    values[450] = 5.0
    table = table_of(values)
    table.shrink(40)
    assert len(table.laps) == len(table.column("rss")) <= 40
    assert max(table.column("rss")) == 5.0

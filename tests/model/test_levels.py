"""The levels of a counter, by made-up values and moments."""

from __future__ import annotations

import pytest

from pytest_rlstability.model.levels import CRITICAL, GROWTH, RECOVERED, WARNING, Crossing, Levels


def crossings(levels: Levels, *values: float, every: float = 1.0) -> list[Crossing]:
    return [one for number, value in enumerate(values) for one in levels.note(value, number * every)]


def test_each_level_is_told_once_until_the_value_was_below_it() -> None:
    found = crossings(Levels("food", warning=50, critical=80), 60, 70, 90, 60, 90, 10, 60)
    assert [one.level for one in found] == [WARNING, CRITICAL, CRITICAL, RECOVERED, WARNING]


def test_a_value_below_all_levels_is_not_told() -> None:
    assert crossings(Levels("food", warning=50, critical=80, per_minute=5), *[10] * 100) == []


def test_the_clean_up_is_called_once_for_each_crossing_and_what_it_freed_is_told() -> None:
    food = [0]
    calls = []

    def clean_up() -> float:
        calls.append(food[0])
        food[0] = 20
        return 20.0

    levels = Levels("food", critical=80, clean_up=clean_up)
    found = []
    for second in range(12):
        found += levels.note(food[0], float(second))
        food[0] += 20
    assert calls == [80, 80, 80]
    assert [one.freed for one in found if one.level == CRITICAL] == [60, 60, 60]
    assert all(one.worked for one in found)
    assert "3 s after the last clean-up" in found[1].text


def test_a_clean_up_that_does_not_help_is_seen() -> None:
    (found,) = crossings(Levels("food", critical=80, clean_up=lambda: 85.0), 90)
    assert not found.worked


def test_growth_per_minute_is_told_once() -> None:
    fast = crossings(Levels("food", per_minute=5), *range(60))
    assert [one.level for one in fast] == [GROWTH]
    assert "60 per minute (limit 5)" in fast[0].text
    assert crossings(Levels("food", per_minute=61), *range(60)) == []


def test_levels_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="warning level 90 is above the critical level 80"):
        Levels("food", warning=90, critical=80)

"""Pace, memory forecast and what there is of memory, from numbers and files."""

from __future__ import annotations

import random

import pytest

from pytest_rlstability.leaks.soak_check import growth_per_second, pace
from pytest_rlstability.model.series import NEWEST, MemoryHistory
from pytest_rlstability.model.soak_state import SoakState

SECONDS = [10.0 * index for index in range(360)]
MIB = 2.0**20


def noisy(values: list[float], share: float, seed: int) -> list[float]:
    """What a busy machine makes of lap times: never less, now and then much more."""
    generator = random.Random(seed)
    return [value * (1 + share * abs(generator.gauss(0, 1)) + 5 * (generator.random() < 0.05)) for value in values]


@pytest.mark.parametrize("seed", range(5))
def test_laps_that_slow_down_are_told_from_a_busy_machine(seed: int) -> None:
    steady = pace(SECONDS, noisy([0.01] * 360, 0.3, seed))
    assert not steady.drifts
    slower = pace(SECONDS, noisy([0.01 + 0.01 * second / 3600 for second in SECONDS], 0.1, seed))
    assert slower.drifts
    assert slower.last > 1.5 * slower.first


def test_a_pause_at_the_end_is_not_a_drift() -> None:
    assert not pace(SECONDS, [0.01] * 340 + [0.5] * 20).drifts


def test_few_laps_have_a_pace_and_no_drift() -> None:
    assert pace([], []).last == 0
    assert pace([1, 2, 3], [0.1, 0.2, 0.9]) == pace([5], [0.2])


@pytest.mark.parametrize("seed", range(5))
def test_memory_that_grows_is_told_from_an_allocators_habits(seed: int) -> None:
    generator = random.Random(seed)
    habits = [400 * MIB + generator.uniform(0, 8 * MIB) for _ in SECONDS]
    assert growth_per_second(SECONDS, habits) == 0
    levels_off = [400 * MIB + 100 * MIB * min(second, 900) / 900 for second in SECONDS]
    assert growth_per_second(SECONDS, levels_off) == 0
    leaks = [value + 0.02 * MIB * second for value, second in zip(habits, SECONDS, strict=True)]
    assert growth_per_second(SECONDS, leaks) == pytest.approx(0.02 * MIB, rel=0.1)


def test_a_state_survives_the_journey_and_a_newer_sender() -> None:
    state = SoakState(duration=60, laps=7, per_lap={"fds": 1.0}, hours_to_limit=3.5, verdict="LEAK")
    assert SoakState.from_dict({**state.to_dict(), "of a later version": 1}) == state


def test_the_history_of_memory_keeps_the_course_and_the_newest() -> None:
    history = MemoryHistory()
    assert history.text() == ""
    for lap in range(10_000):
        history.add(lap * 10.0, lap, (100 + lap / 100) * MIB)
    course, *newest = history.text().splitlines()
    assert course.startswith("100.0 MiB ▁")
    assert course.endswith("█ 200.0 MiB resident")
    assert len(newest) == NEWEST
    assert newest[-1].split() == ["after", "27", "h", "46", "min", "lap", "9999", "200.0", "MiB"]

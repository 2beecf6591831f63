"""Slopes, their errors and growth, from lists of numbers."""

from __future__ import annotations

import random

import pytest

from pytest_rlstability.model.growth import FEWEST_SAMPLES, Growth, concordance, growth, mean_rate, slope, spread


@pytest.mark.parametrize("rate", [0, 1, 3, -7, 64, 0.5, 1024.25])
@pytest.mark.parametrize("count", [2, 3, 9, 100, 511])
def test_a_line_is_exact_whatever_the_distances(rate: float, count: int) -> None:
    generator = random.Random(count)
    positions = [float(sum(generator.randrange(1, 9) for _ in range(number))) for number in range(count)]
    assert slope(sorted(positions), [1000 + rate * position for position in sorted(positions)]) == rate


def test_no_line() -> None:
    assert slope([], []) == slope([1], [5]) == slope([3, 3, 3], [1, 2, 3]) == 0
    assert mean_rate([], []) == mean_rate([1], [5]) == mean_rate([3, 3], [1, 2]) == 0
    assert concordance([]) == spread([]) == 0


def test_growth_is_found_in_noise_and_its_error_is_about_right() -> None:
    generator = random.Random(1)
    missed = 0
    for _ in range(400):
        found = growth(range(60), range(60), [5 * lap + generator.gauss(0, 20) for lap in range(60)])
        assert found is not None
        missed += abs(found.per_lap - 5) > 2 * found.error
    assert missed < 400 * 0.15


def test_a_spike_and_a_warm_up_are_not_growth() -> None:
    values = [1000.0 * lap for lap in range(20)] + [20_000.0] * 40
    values[45] = 9e9
    found = growth(range(60), range(60), values)
    assert found is not None
    assert (found.per_lap, found.per_minute, found.error) == (0.0, 0.0, 0.0)
    assert growth(range(9), range(9), [9, 9, 9, 2, 3, 4, 5, 6, 7]) == Growth(1.0, 60.0, error=0.0, laps=8)


@pytest.mark.parametrize("period", [5, 17, 70])
def test_the_teeth_of_a_sawtooth_do_not_change_the_slope(period: int) -> None:
    laps = range(0, 40 * period, 3)
    assert slope(laps, [64 * lap + 4096 * (lap % period) for lap in laps]) == pytest.approx(64, rel=0.5)


def test_too_few_samples_and_too_little_time() -> None:
    few = range(FEWEST_SAMPLES - 1)
    assert growth(few, few, few) is None
    short = growth(range(20), [lap / 10 for lap in range(20)], range(20))
    assert short is not None
    assert (short.per_lap, short.per_minute) == (1.0, None)


def test_growth_per_minute_is_by_time_not_by_laps() -> None:
    """Laps that get slower: the same growth per lap is less per minute."""
    seconds = [lap * lap / 10 for lap in range(60)]
    found = growth(range(60), seconds, [2.0 * second for second in seconds])
    assert found is not None
    assert found.per_minute == pytest.approx(120)
    assert found.laps == 59


def test_a_mean_rate_is_by_the_ends_alone() -> None:
    assert mean_rate([1, 5, 11], [3, 99, 33]) == 3.0


def test_the_spread_of_normal_numbers_is_their_standard_deviation() -> None:
    assert spread([1.0, 1.0, 1.0, 1.0, 50.0]) == 0.0
    generator = random.Random(2)
    assert spread([generator.gauss(3, 2) for _ in range(4000)]) == pytest.approx(2, rel=0.1)

"""Growth of counts, judged on lists of numbers."""

from __future__ import annotations

import random

import pytest

from pytest_rlstability.kits.box2d.growth import (
    Limits,
    Sample,
    beyond,
    growth_per_lap,
    growth_per_minute,
    keeps_growing,
    samples_of,
)
from pytest_rlstability.model.series import SampleTable


def laps(*counts: int, seconds: float = 1.0) -> list[Sample]:
    return [Sample(lap, lap * seconds, count) for lap, count in enumerate(counts)]


def test_steady_growth_is_found() -> None:
    assert keeps_growing(laps(*range(0, 60, 3)))


def test_slow_growth_under_noise_is_found() -> None:
    noise = random.Random(1)
    assert keeps_growing(laps(*(300 + 2 * lap + noise.randrange(-10, 10) for lap in range(100))))


@pytest.mark.parametrize(
    "counts",
    [
        [5] * 40,
        [0, *[200] * 40],
        [*range(20), *[20] * 30],
        [min(lap, 25) for lap in range(40)],
        [lap % 7 for lap in range(50)],
        [round(100 * (1 - 0.8**lap)) for lap in range(30)],
        list(range(40, 0, -1)),
        list(range(8)),
    ],
    ids=[
        "constant",
        "set up once",
        "pool filled",
        "pool just filled",
        "saw tooth",
        "levelling off",
        "shrinking",
        "too few",
    ],
)
def test_innocents(counts: list[int]) -> None:
    assert not keeps_growing(laps(*counts))


def test_tracks_that_differ_from_lap_to_lap_are_innocent() -> None:
    alarms = 0
    for seed in range(2000):
        track = random.Random(seed)
        alarms += keeps_growing(laps(*(track.randrange(250, 350) for _ in range(17))))
    assert alarms == 0


def test_the_first_lap_may_set_things_up() -> None:
    assert growth_per_lap(laps(0, 200, 200, 200)) == 0


def test_growth_per_lap_counts_laps_not_samples() -> None:
    assert growth_per_lap([Sample(0, 0, 0), Sample(1, 1, 3), Sample(11, 2, 33)]) == 3


def test_growth_per_minute_needs_time() -> None:
    assert growth_per_minute(laps(0, 1, 2, seconds=1.0)) is None
    assert growth_per_minute(laps(0, 1, 2, seconds=30.0)) == 2


def test_limits() -> None:
    counts = laps(1, 4, 7, 10, seconds=20.0)
    assert "beyond the critical limit of 9" in str(beyond("food", counts, Limits(critical=9)))
    assert "3 per lap over 3 laps, limit 0" in str(beyond("food", counts, Limits(per_lap=0)))
    assert "9 per minute, limit 5" in str(beyond("food", counts, Limits(per_minute=5)))
    assert beyond("food", counts, Limits(warning=1, critical=10, per_lap=3, per_minute=9)) is None


def test_a_critical_limit_is_a_promise_that_growth_ends() -> None:
    growing = laps(*range(0, 60, 3))
    assert beyond("food", growing, Limits()) is not None
    assert beyond("food", growing, Limits(critical=60)) is None


def test_a_misspelt_limit_is_named() -> None:
    with pytest.raises(ValueError, match="unknown limit 'critcal'"):
        Limits.of({"critcal": 3})


def test_counts_of_many_laps_are_thinned_evenly() -> None:
    table = SampleTable(32, reserve=True)
    for lap in range(10_000):
        table.add(lap, float(lap), {"food": 3 * lap, "agents": 2})
    food = samples_of(table, "food")
    assert 16 <= len(food) <= 32
    assert (food[0], food[1], food[-1]) == (Sample(0, 0, 0), Sample(1, 1, 3), Sample(9999, 9999, 29997))
    assert growth_per_lap(food) == 3
    assert growth_per_lap(samples_of(table, "agents")) == 0


@pytest.mark.parametrize("laps", [100, 200, 300, 1000, 4000])
def test_growth_is_found_however_many_laps_were_thinned_out(laps: int) -> None:
    table = SampleTable(128, reserve=True)
    for lap in range(laps):
        table.add(lap, float(lap), {"food": 3 * lap, "pool": min(lap, laps // 2)})
    assert keeps_growing(samples_of(table, "food"))
    assert not keeps_growing(samples_of(table, "pool"))


def test_a_class_that_is_seen_late_and_a_lap_that_is_counted_twice() -> None:
    table = SampleTable(8, reserve=True)
    table.add(0, 0.0, {"agents": 1})
    table.add(1, 1.0, {"agents": 1, "food": 5})
    table.add(1, 2.0, {"agents": 1, "food": 6})
    assert samples_of(table, "food") == [Sample(0, 0, 0), Sample(1, 2, 6)]
    assert samples_of(table, "never seen") == []

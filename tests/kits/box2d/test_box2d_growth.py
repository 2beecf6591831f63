"""Growth of counts, judged on lists of numbers."""

from __future__ import annotations

import random

import pytest

from pytest_rlstability.kits.box2d.growth import Counts, Limits
from pytest_rlstability.model.series import SampleTable


def laps(*counts: int, seconds: float = 1.0) -> Counts:
    return Counts(range(len(counts)), [lap * seconds for lap in range(len(counts))], counts)


def rows(counts: Counts) -> list[tuple[float, float, int]]:
    return list(zip(counts.laps, counts.seconds, counts.values, strict=True))


def test_steady_growth_is_found() -> None:
    assert laps(*range(0, 60, 3)).keep_growing()


def test_slow_growth_under_noise_is_found() -> None:
    noise = random.Random(1)
    assert laps(*(300 + 2 * lap + noise.randrange(-10, 10) for lap in range(100))).keep_growing()


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
    assert not laps(*counts).keep_growing()


def test_tracks_that_differ_from_lap_to_lap_are_innocent() -> None:
    alarms = 0
    for seed in range(2000):
        track = random.Random(seed)
        alarms += laps(*(track.randrange(250, 350) for _ in range(17))).keep_growing()
    assert alarms == 0


def test_the_first_lap_may_set_things_up() -> None:
    assert laps(0, 200, 200, 200).per_lap == 0


def test_growth_per_lap_counts_laps_not_samples() -> None:
    assert Counts([0, 1, 11], [0, 1, 2], [0, 3, 33]).per_lap == 3


def test_growth_per_minute_needs_time() -> None:
    assert laps(0, 1, 2, seconds=1.0).per_minute is None
    assert laps(0, 1, 2, seconds=30.0).per_minute == 2


def test_growth_per_minute_does_not_count_what_the_first_reset_sets_up() -> None:
    assert laps(0, 12, 12, 12, seconds=3.0).per_minute == 0
    assert not laps(0, 12, 12, 12, seconds=3.0).beyond(Limits(per_minute=5))


def test_growth_per_minute_without_laps_counts_all_of_it() -> None:
    assert Counts([0, 0], [0, 30], [0, 6]).per_minute == 12


def test_limits() -> None:
    counts = laps(1, 4, 7, 10, seconds=20.0)
    assert "beyond the critical limit of 9" in counts.beyond(Limits(critical=9))
    assert "3 per lap over 3 laps, limit 0" in counts.beyond(Limits(per_lap=0))
    assert "9 per minute, limit 5" in counts.beyond(Limits(per_minute=5))
    assert not counts.beyond(Limits(warning=1, critical=10, per_lap=3, per_minute=9))


def test_a_critical_limit_is_a_promise_that_growth_ends() -> None:
    growing = laps(*range(0, 60, 3))
    assert growing.beyond(Limits())
    assert not growing.beyond(Limits(critical=60))


def test_a_misspelt_limit_is_named() -> None:
    with pytest.raises(ValueError, match="unknown limit 'critcal'"):
        Limits.of({"critcal": 3})


def test_counts_of_many_laps_are_thinned_evenly() -> None:
    table = SampleTable(32, reserve=True)
    for lap in range(10_000):
        table.add(lap, float(lap), {"food": 3 * lap, "agents": 2})
    food = Counts.of(table, "food")
    kept = rows(food)
    assert 16 <= len(kept) <= 32
    assert (kept[0], kept[1], kept[-1]) == ((0, 0, 0), (1, 1, 3), (9999, 9999, 29997))
    assert food.per_lap == 3
    assert Counts.of(table, "agents").per_lap == 0


@pytest.mark.parametrize("laps", [100, 200, 300, 1000, 4000])
def test_growth_is_found_however_many_laps_were_thinned_out(laps: int) -> None:
    table = SampleTable(128, reserve=True)
    for lap in range(laps):
        table.add(lap, float(lap), {"food": 3 * lap, "pool": min(lap, laps // 2)})
    assert Counts.of(table, "food").keep_growing()
    assert not Counts.of(table, "pool").keep_growing()


def test_a_class_that_is_seen_late_and_a_lap_that_is_counted_twice() -> None:
    table = SampleTable(8, reserve=True)
    table.add(0, 0.0, {"agents": 1})
    table.add(1, 1.0, {"agents": 1, "food": 5})
    table.add(1, 2.0, {"agents": 1, "food": 6})
    assert rows(Counts.of(table, "food")) == [(0, 0, 0), (1, 2, 6)]
    assert not Counts.of(table, "never seen").beyond(Limits(critical=0))

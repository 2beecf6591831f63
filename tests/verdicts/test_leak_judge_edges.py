"""Where each answer of the judge begins: envelopes drawn by hand, one step to either side of every rule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest

from pytest_rlstability.verdicts.leak import STEADY, Evidence, Judgement, Rule, judge

RULE = Rule(smallest=100, resolution=1.0)
EXACT = Rule(smallest=8, resolution=0.05, ceiling=256, exact=True)
DONE = Evidence(laps=1200, seconds=10.0, budget=20.0, final=True)


def drawn(rises: Sequence[float], evidence: Evidence = DONE, rule: Rule = RULE) -> Judgement:
    """Judge a course of twelve stretches of a hundred laps, each of which adds one of these *rises*; a first sample
    that lies a trifle higher makes it none that does nothing but step up."""
    levels = list(accumulate(rises, initial=1000.0))
    laps = list(range(0, 1201, 10))
    values = [levels[lap // 100] + (rises[lap // 100] * (lap % 100) / 100 if lap < 1200 else 0.0) for lap in laps]
    values[0] += 20.0
    return judge(laps, values, rule, evidence)


def line(slope: float, evidence: Evidence, rule: Rule = RULE) -> Judgement:
    laps = [evidence.laps * number / 120 for number in range(121)]
    return judge(laps, [1000.0 + slope * lap for lap in laps], rule, evidence)


OLDER = [100.0] * 5
"""The rises between the older stretches; six newer follow, and the last stretch's own, which does not count."""


@pytest.mark.parametrize(
    ("newer", "state"),
    [
        ([82.0] * 7, "leak"),
        ([76.0] * 7, "undecided"),
        ([62.0] * 7, "undecided"),
        ([58.0] * 7, "undecided"),
        ([72.0, 68.0, 64.0, 60.0, 56.0, 52.0, 48.0], "undecided"),
        ([68.0, 64.0, 60.0, 56.0, 52.0, 48.0, 44.0], "bounded"),
        ([62.0, 60.0, 58.0, 57.0, 55.0, 54.0, 53.0], "undecided"),
        ([0.0] * 7, "bounded"),
        ([100.0, 0.0, 100.0, 100.0, 100.0, 100.0, 100.0], "undecided"),
    ],
    ids=[
        "0.82 of the rate",
        "0.76",
        "0.62",
        "straight on",
        "slower and slower",
        "below 0.6",
        "hardly",
        "none",
        "a pause",
    ],
)
def test_growth_must_not_slow_down_nor_pause(newer: list[float], state: str) -> None:
    assert drawn([*OLDER, *newer]).state == state


def test_what_only_began_to_grow_is_undecided() -> None:
    assert drawn([0.0] * 5 + [100.0] * 7).state == "undecided"
    assert drawn([0.0] * 3 + [100.0] * 9).state == "undecided", "it has to have been a leak at two thirds already"


@pytest.mark.parametrize(("low", "state"), [(30.0, "leak"), (8.0, "undecided")])
def test_growth_must_be_even(low: float, state: str) -> None:
    high = 100.0
    assert drawn([high, low] * 6).state == state


def test_growth_below_the_smallest_is_not_a_leak() -> None:
    assert drawn([9.2] * 12).state == "leak"
    assert drawn([8.9] * 12).state != "leak"


@pytest.mark.parametrize(("limit", "state"), [(0.9, "leak"), (1.01, "clean")])
def test_growth_up_to_the_limit_is_clean(limit: float, state: str) -> None:
    found = line(1.0, DONE, Rule(limit=limit, smallest=100, resolution=1.0))
    assert found.state == state
    assert found.per_lap == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("laps", "seconds", "state"),
    [
        (2000, 12.5, "undecided"),
        (2000, 13.5, "leak"),
        (2600, 9.5, "undecided"),
        (2600, 10.5, "leak"),
        (11_900, 2.0, "undecided"),
        (12_100, 2.0, "leak"),
        (12_100, 1.4, "undecided"),
    ],
)
def test_steady_growth_is_a_leak_when_a_buffer_would_be_full(laps: int, seconds: float, state: str) -> None:
    found = line(5.0, Evidence(laps, seconds, budget=20.0))
    assert found.state == state
    assert found.settled is (state == "leak")
    assert found.steady is (found.reason == STEADY) is (state == "undecided")
    assert found.growing
    assert line(5.0, Evidence(laps, seconds, budget=20.0, final=True)).state == "leak", "there is no more time"


@pytest.mark.parametrize(
    ("laps", "spent", "growth", "state"),
    [
        (780, 0.1, 20, "leak"),
        (780, 0.1, 14, "undecided"),
        (750, 0.1, 20, "undecided"),
        (100, 0.45, 12, "leak"),
        (100, 0.35, 12, "undecided"),
        (100, 0.1, 300, "leak"),
    ],
    ids=["enough laps", "not twice the smallest", "few laps", "time", "no time yet", "over the ceiling"],
)
def test_what_has_no_noise_is_a_leak_sooner(laps: int, spent: float, growth: float, state: str) -> None:
    found = line(growth * 12 / 11 / laps, Evidence(laps, spent * 20, budget=20.0), EXACT)
    assert found.state == state


@pytest.mark.parametrize(
    ("laps", "seconds", "settled"),
    [
        (300, 0.45, True),
        (300, 0.35, False),
        (200, 0.45, False),
        (200, 7.0, True),
        (200, 6.0, False),
        (70, 7.0, True),
        (60, 7.0, False),
        (60, 18.5, True),
    ],
)
def test_a_flat_course_is_settled_when_it_was_long_enough(laps: int, seconds: float, settled: bool) -> None:
    found = line(0.0, Evidence(laps, seconds, budget=20.0))
    assert (found.state, found.settled) == ("clean", settled)
    assert not found.growing
    assert found.per_lap == 0
    assert line(0.0, Evidence(laps, seconds, budget=20.0, final=True)).settled


@pytest.mark.parametrize(
    ("noise", "seconds", "settled"),
    [(0.04, 0.5, True), (0.2, 0.5, False), (0.2, 1.6, True), (0.9, 1.6, True), (1.2, 1.6, False), (1.2, 7.0, True)],
)
def test_noise_that_could_hide_a_leak_is_watched_for_longer(noise: float, seconds: float, settled: bool) -> None:
    """*noise* is a share of what a drift at the resolution adds up to over the newer half."""
    laps = list(range(0, 1201, 10))
    spread = noise * RULE.resolution * 1200 / 2
    values = [1000.0 + (spread if lap * 12 // 1200 % 2 else 0.0) for lap in laps]
    found = judge(laps, values, RULE, Evidence(1200, seconds, budget=20.0))
    assert (found.state, found.settled) == ("clean", settled)


def test_what_slows_down_is_settled_when_half_of_the_time_has_passed() -> None:
    rises = [*OLDER, 60.0, 56.0, 52.0, 48.0, 44.0, 40.0, 36.0]
    before, after = (drawn(rises, Evidence(1200, seconds, budget=20.0)) for seconds in (9.5, 10.5))
    assert (before.state, before.settled) == ("bounded", False)
    assert (after.state, after.settled) == ("bounded", True)


@pytest.mark.parametrize(("stretches", "state"), [(12, "leak"), (11, "undecided")])
def test_it_takes_twelve_samples(stretches: int, state: str) -> None:
    laps = list(range(stretches))
    assert judge(laps, [100.0 * lap for lap in laps], RULE, DONE).state == state


@pytest.mark.parametrize(("factor", "leaks"), [(1.5, True), (3.0, False)])
def test_leaps_are_a_leak_if_they_keep_the_rate(factor: float, leaks: bool) -> None:
    """Capacity that grows by this factor whenever a hundred bytes a lap have filled it."""
    laps = list(range(1, 4097))
    capacity, values = 64.0, []
    for lap in laps:
        while capacity < 100 * lap:
            capacity *= factor
        values.append(capacity)
    found = judge(laps, values, RULE, Evidence(4096, 15.0, budget=20.0))
    assert (found.state == "leak") is leaks

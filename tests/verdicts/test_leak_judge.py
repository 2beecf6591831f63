"""The judge on lists of numbers: no process, no clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random

import pytest

from pytest_rlstability.verdicts.leak import Evidence, Judgement, Rule, judge

MEMORY = Rule(smallest=4096, resolution=24)
COUNTER = Rule(smallest=8, resolution=0.05, ceiling=256, exact=True)
Course = Callable[[int], float]


def watch(
    course: Course, rule: Rule = MEMORY, *, laps: int = 200_000, every: int = 100, cost: float = 1e-4
) -> Judgement:
    """Judge as a check does: look again each time there is an eighth more, until it is settled or time is up."""
    budget = laps * cost
    at, values, next_look = [0.0], [course(0)], 12
    for lap in range(every, laps + 1, every):
        at.append(lap)
        values.append(course(lap))
        final = lap + every > laps
        if final or len(at) >= next_look:
            next_look = math.ceil(len(at) * 1.125)
            found = judge(at, values, rule, Evidence(lap, lap * cost, budget, final))
            if found.settled:
                return found
    raise AssertionError("a final judgement is settled")


def noise(size: float, seed: int = 0) -> Iterator[float]:
    random = Random(seed)
    while True:
        yield random.gauss(0, size)


def vector(growth: float) -> Course:
    """64 bytes a lap into a vector that grows by a factor when it is full."""

    def course(lap: int) -> float:
        capacity = 1024.0
        while capacity < 64 * lap:
            capacity *= growth
        return capacity

    return course


LEAKS: dict[str, Course] = {
    "linear": lambda lap: 1e6 + 1000 * lap,
    "one object in ten laps": lambda lap: 1e6 + 600 * (lap // 10),
    "64 bytes a lap": lambda lap: 1e7 + 64 * lap,
    "accelerating": lambda lap: 1e6 + lap**1.5,
    "with a late step": lambda lap: 64 * lap + (1e6 if lap > 3000 else 0),
    "under a sawtooth": lambda lap: 64 * lap + 4096 * (lap % 700),
    "in a vector that grows by an eighth": vector(1.125),
}


@pytest.mark.parametrize("name", LEAKS)
def test_what_grows_for_ever_is_a_leak(name: str) -> None:
    assert watch(LEAKS[name]).state == "leak"


@pytest.mark.parametrize("seed", range(20))
def test_a_tiny_leak_is_found_in_noise(seed: int) -> None:
    shaking = noise(100_000, seed)
    assert watch(lambda lap: 1e7 + 64 * lap + next(shaking)).state == "leak"


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_is_found_among_spikes(seed: int) -> None:
    random = Random(seed)
    assert watch(lambda lap: 200 * lap + (1e7 if random.random() < 0.1 else 0)).state == "leak"


def test_the_rate_is_what_it_does_now() -> None:
    found = watch(lambda lap: 500 * min(lap, 1000) + 128 * lap)
    assert found.per_lap == pytest.approx(128, rel=0.01)


INNOCENTS: dict[str, Course] = {
    "flat": lambda lap: 1e6,
    "late step": lambda lap: 1e6 + (5e5 if lap > 2500 else 0),
    "steps that get rarer": lambda lap: 1e5 * sum(lap > step for step in (300, 700, 1500, 3100, 6300, 12700)),
    "sawtooth of 25": lambda lap: 4096 * (lap % 25),
    "sawtooth of 4000": lambda lap: 4096 * (lap % 4000),
    "buffer of 500": lambda lap: 4096 * min(lap, 500),
    "buffer of 10000": lambda lap: 4096 * min(lap, 10_000),
    "states met at random": lambda lap: 4096 * 5000 * (1 - math.exp(-lap / 5000)),
    "logarithm": lambda lap: 1e5 * math.log1p(lap),
    "square root": lambda lap: 1e4 * math.sqrt(lap),
    "shrinking": lambda lap: 1e8 - 64 * lap,
}


@pytest.mark.parametrize("name", INNOCENTS)
def test_what_stops_is_not_a_leak(name: str) -> None:
    assert watch(INNOCENTS[name]).state in ("clean", "bounded")


@pytest.mark.parametrize(
    "course",
    [lambda lap: 4096 * min(lap, 5000), lambda lap: 4096 * min(lap // 100, 40)],
    ids=["buffer of 5000", "wall by wall"],
)
def test_what_fills_within_half_of_the_time_is_not_a_leak(course: Course) -> None:
    """Laps of a millisecond: thousands of them are a small part of the time there is."""
    assert watch(course, laps=22_000, every=25, cost=1e-3).state == "bounded"
    assert watch(lambda lap: 4096 * lap, laps=22_000, every=25, cost=1e-3).state == "leak"


def test_growth_that_stopped_is_told_from_none() -> None:
    assert watch(INNOCENTS["flat"]).state == "clean"
    assert watch(INNOCENTS["buffer of 10000"]).state == "bounded"


def _autoregressive(memory: float, seed: int) -> Course:
    random, state = Random(seed), [0.0]

    def course(lap: int) -> float:
        state[0] = memory * state[0] + random.gauss(0, 10_000)
        return 1e7 + state[0]

    return course


@pytest.mark.parametrize("memory", [0.0, 0.9, 0.99, 1.0])
def test_noise_is_not_a_leak(memory: float) -> None:
    """From white noise to a random walk: 60 seeds each, and no leak found."""
    states = [watch(_autoregressive(memory, seed)).state for seed in range(60)]
    assert "leak" not in states


@pytest.mark.parametrize("seed", range(20))
def test_spikes_are_not_a_leak(seed: int) -> None:
    random = Random(seed)
    assert watch(lambda lap: 1e7 if random.random() < 0.05 else 1e6).state == "clean"


def test_a_counter_is_a_leak_within_tens_of_laps() -> None:
    found = watch(lambda lap: 10 + lap, COUNTER, laps=100_000, every=4)
    assert found.state == "leak"
    assert found.laps < 400
    assert found.per_lap == 1


def test_a_pool_that_warms_up_is_not_a_leak() -> None:
    assert watch(lambda lap: 3 + min(lap, 40), COUNTER, laps=2000, every=2, cost=0.01).state in ("clean", "bounded")


def test_growth_within_the_limit_is_clean() -> None:
    allowed = Rule(limit=1024, smallest=4096, resolution=24)
    assert watch(lambda lap: 900 * lap, allowed).state == "clean"
    assert watch(lambda lap: 1200 * lap, allowed).state == "leak"


def test_few_laps_are_undecided_and_say_how_many_would_decide() -> None:
    found = judge([0, 1, 2, 3], [10, 20, 30, 40], MEMORY, Evidence(3, 30, 30, final=True))
    assert found.state == "undecided"
    assert found.laps_wanted > 3
    assert "3 laps" in found.reason


def test_steady_growth_is_not_a_leak_before_it_has_been_watched() -> None:
    laps = list(range(0, 400, 4))
    found = judge(laps, [1000 * lap for lap in laps], MEMORY, Evidence(400, 0.1, 30))
    assert (found.state, found.settled) == ("undecided", False)
    assert found.laps_wanted > 400


def test_a_slow_lap_leaks_in_a_few_dozen() -> None:
    assert watch(lambda lap: 5000 * lap, laps=40, every=1, cost=0.75).state == "leak"


def test_a_rise_that_reaches_its_ceiling_is_a_leak_at_once() -> None:
    rule = Rule(smallest=4096, resolution=24, ceiling=1e6)
    laps = list(range(0, 100, 2))
    assert judge(laps, [20_000 * lap for lap in laps], rule, Evidence(98, 0.01, 30)).state == "leak"


GAP = [lap for lap in range(0, 4000, 10) if not 2500 <= lap < 3100]
"""Laps that were sampled; between two of them more passed than a stretch holds."""


def test_a_leak_sampled_with_a_gap_is_one() -> None:
    assert judge(GAP, [100.0 + 2 * lap for lap in GAP], Rule(), Evidence(4000, 20, 30)).state == "leak"


def test_a_step_in_a_gap_is_none() -> None:
    values = [100.0 if lap < 2800 else 5000.0 for lap in GAP]
    assert judge(GAP, values, Rule(), Evidence(4000, 20, 30)).state != "leak"

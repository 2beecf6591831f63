"""Counts in, words out: which change of conditions matters, and how seldom one is named that does not."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from pytest_rlstability.verdicts.factors import (
    Counts,
    Effect,
    Finding,
    fisher,
    judge_factor,
    knows_rate,
    next_factor,
    rate_bound,
)

NAMES = [f"factor {number}" for number in range(14)]


@pytest.mark.parametrize(
    ("one", "other", "p"),
    [
        (Counts(3, 4), Counts(1, 4), 0.4857142857),  # the lady tasting tea
        (Counts(10, 10), Counts(0, 10), 1.0825e-05),
        (Counts(0, 5), Counts(0, 9), 1.0),
        (Counts(1, 24), Counts(8, 8), 8.5565e-07),
    ],
)
def test_fishers_test_is_exact(one: Counts, other: Counts, p: float) -> None:
    assert fisher(one, other) == pytest.approx(p, rel=1e-3)
    assert fisher(other, one) == pytest.approx(p, rel=1e-3)


def run(plain_rate: float, rates: Mapping[str, float], seed: int) -> tuple[Counts, list[Finding], int]:
    """A whole diagnosis with drawn deaths: the plain counts, the findings, and how many runs it took."""
    drawn = random.Random(seed)
    plain = Counts()
    while not knows_rate(plain):
        plain = plain.add(drawn.random() < plain_rate)
    counts: dict[str, Counts] = {}
    runs = 0
    if plain.died:
        while (name := next_factor(plain, counts, NAMES)) is not None:
            counts[name] = counts.get(name, Counts()).add(drawn.random() < rates.get(name, plain_rate))
            runs += 1
            assert runs <= 24 * len(NAMES)
    return plain, [judge_factor(name, plain, one, len(NAMES)) for name, one in counts.items()], runs


def named(findings: list[Finding]) -> dict[str, Effect]:
    words = (Effect.GOES_AWAY, Effect.LESS_OFTEN, Effect.MORE_OFTEN)
    return {one.factor: one.effect for one in findings if one.effect in words}


@pytest.mark.parametrize("rate", [1.0, 0.7, 0.4, 0.1])
def test_a_factor_that_does_nothing_is_seldom_named(rate: float) -> None:
    wrong = sum(bool(named(run(rate, {}, seed)[1])) for seed in range(200))
    assert wrong <= 200 * 0.05


@pytest.mark.parametrize(("rate", "changed", "effect"), [(1.0, 0.0, Effect.GOES_AWAY), (0.7, 0.0, Effect.GOES_AWAY)])
def test_a_factor_that_removes_the_failure_is_found(rate: float, changed: float, effect: Effect) -> None:
    results = [named(run(rate, {NAMES[5]: changed}, seed)[1]) for seed in range(100)]
    assert sum(result.get(NAMES[5]) == effect for result in results) >= 95


def test_a_factor_that_makes_it_certain_is_found() -> None:
    results = [named(run(0.1, {NAMES[2]: 1.0}, seed)[1]) for seed in range(100)]
    with_death = [result for seed, result in enumerate(results) if run(0.1, {}, seed)[0].died]
    assert sum(result.get(NAMES[2]) == Effect.MORE_OFTEN for result in with_death) >= 0.9 * len(with_death)


def test_factors_that_do_nothing_cost_few_runs_when_it_always_dies() -> None:
    assert run(1.0, {NAMES[0]: 0.0}, 1)[2] == 3 * (len(NAMES) - 1) + 8


def test_a_change_that_breaks_the_program_proves_nothing() -> None:
    broken = Counts(0, 0, 3)
    assert judge_factor("x", Counts(8, 8), broken, 14).effect is Effect.NOT_DECIDED
    assert next_factor(Counts(8, 8), {"x": broken}, ["x"]) is None


def test_a_long_row_of_passes_bounds_the_rate() -> None:
    assert rate_bound(Counts(0, 59)) == pytest.approx(0.0495, abs=1e-3)
    assert rate_bound(Counts()) == 1.0

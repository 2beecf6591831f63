"""The sequential test of a promised pass rate: its errors are what they are said to be, by calculation and by dice."""

from __future__ import annotations

import random

import pytest

from pytest_rlstability.verdicts.sequential import SequentialTest, interval

PROMISES = [
    SequentialTest(pass_rate, confidence, max_runs)
    for pass_rate in (0.5, 0.8, 0.9, 0.95, 0.99, 1.0)
    for confidence in (0.8, 0.95, 0.99)
    for max_runs in (10, 20, 60, 150)
]
DEFAULT = SequentialTest(pass_rate=0.95, confidence=0.95, max_runs=60)


def name(test: SequentialTest) -> str:
    return f"{test.pass_rate}-{test.confidence}-{test.max_runs}"


def toss(test: SequentialTest, true_rate: float, dice: random.Random) -> tuple[str, int]:
    """One test with a known pass rate, run until there is an answer."""
    runs = passes = 0
    while (answer := test.decide(runs, passes) if runs else "open") == "open":
        runs += 1
        passes += dice.random() < true_rate
    return answer, runs


def chance(test: SequentialTest, true_rate: float, wanted: str) -> float:
    """The exact probability of this answer."""
    return sum(weight for (answer, _, _), weight in test.ends(true_rate).items() if answer == wanted)


def mean_runs(test: SequentialTest, true_rate: float) -> float:
    return sum(runs * weight for (_, runs, _), weight in test.ends(true_rate).items())


@pytest.mark.parametrize("test", PROMISES, ids=name)
def test_a_kept_promise_is_rarely_called_broken(test):
    for true_rate in (test.pass_rate, (1 + test.pass_rate) / 2, 1.0):
        assert chance(test, true_rate, "broken") <= 1 - test.confidence + 1e-9


@pytest.mark.parametrize("test", PROMISES, ids=name)
def test_a_clearly_worse_test_is_rarely_called_kept(test):
    for true_rate in (test.worse_rate, test.worse_rate / 2, 0.0):
        assert chance(test, true_rate, "kept") <= 1 - test.confidence + 1e-9


@pytest.mark.parametrize("true_rate", [1.0, 0.98, 0.95, 0.9, 0.75, 0.5])
def test_dice_agree_with_the_calculation(true_rate):
    dice = random.Random(20_000 + round(100 * true_rate))
    tosses = [toss(DEFAULT, true_rate, dice) for _ in range(4000)]
    broken = sum(answer == "broken" for answer, _ in tosses) / len(tosses)
    mean = sum(runs for _, runs in tosses) / len(tosses)
    assert broken == pytest.approx(chance(DEFAULT, true_rate, "broken"), abs=0.025)
    assert mean == pytest.approx(mean_runs(DEFAULT, true_rate), rel=0.05)
    if true_rate >= DEFAULT.pass_rate:
        assert broken <= 0.05
    if true_rate <= 0.75:
        assert broken >= 0.93


def test_clean_and_hopeless_tests_are_cheap():
    assert mean_runs(DEFAULT, 1.0) == 13
    assert mean_runs(DEFAULT, 0.0) == 2
    assert mean_runs(DEFAULT, 0.5) < 6
    assert chance(DEFAULT, 0.5, "broken") > 0.999


def test_more_runs_tell_finer_differences():
    worse = [SequentialTest(0.95, 0.95, max_runs).worse_rate for max_runs in (5, 20, 60, 200, 1000)]
    assert worse == sorted(worse)
    assert worse[0] == 0.95 / 2
    assert worse[2] == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize(
    ("test", "runs", "passes", "answer"),
    [
        (SequentialTest(0.95, 0.95, 4), 4, 4, "undecided"),
        (SequentialTest(0.95, 0.95, 5), 5, 5, "kept"),
        (SequentialTest(0.95, 0.95, 1), 1, 1, "undecided"),
        (SequentialTest(0.95, 0.95, 1), 1, 0, "broken"),
        (SequentialTest(0.5, 0.95, 3), 3, 0, "broken"),
        (SequentialTest(0.5, 0.95, 3), 3, 1, "undecided"),
        (SequentialTest(1.0, 0.95, 60), 20, 19, "broken"),
        (SequentialTest(1.0, 0.95, 60), 33, 33, "kept"),
        (DEFAULT, 60, 53, "broken"),
        (DEFAULT, 3, 1, "open"),
    ],
)
def test_answers(test, runs, passes, answer):
    assert test.decide(runs, passes) == answer


@pytest.mark.parametrize("max_runs", [1, 2, 7, 20, 30, 60])
def test_a_broken_promise_lies_outside_the_interval_shown(max_runs):
    test = SequentialTest(0.95, 0.95, max_runs)
    for runs in range(1, max_runs + 1):
        for passes in range(runs):
            if test.decide(runs, passes) == "broken":
                assert interval(runs, passes, 0.95)[1] <= 0.95 + 1e-9


def test_interval_against_known_values():
    assert interval(10, 0, 0.95) == pytest.approx((0.0, 0.2589), abs=1e-4)
    assert interval(10, 10, 0.95) == pytest.approx((0.7411, 1.0), abs=1e-4)
    assert interval(20, 15, 0.975) == pytest.approx((0.5090, 0.9134), abs=1e-4)
    low, high = interval(5000, 4750, 0.95)
    assert 0.94 < low < 0.95 < high < 0.96

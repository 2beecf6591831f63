"""A promise such as "passes 95 % of the time", decided run by run: Wald's sequential probability ratio test.

Two pass rates are compared: the promised one, and one clearly worse. The promise is *broken* when the runs are
``1 / (1 - confidence)`` times likelier at the worse rate, and *kept* when they are that much likelier at the promised
rate. However often one looks, a test at or above the promise is called broken with a probability of at most
``1 - confidence``, and a test at or below the worse rate is called kept with at most the same (Ville's inequality).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Literal

Decision = Literal["open", "kept", "broken", "undecided"]
End = tuple[Decision, int, int]
"""An answer, and after how many runs and passes it was given."""

_ROUNDING = 1e-9


@dataclass(frozen=True)
class SequentialTest:
    """When to stop, and with which answer.

    >>> test = SequentialTest(pass_rate=0.95, confidence=0.95, max_runs=60)
    >>> test.decide(runs=12, passes=12), test.decide(runs=13, passes=13), test.decide(runs=2, passes=0)
    ('open', 'kept', 'broken')
    """

    pass_rate: float
    confidence: float
    max_runs: int

    @cached_property
    def worse_rate(self) -> float:
        """The pass rate that has to be ruled out before the promise counts as kept.

        Half of the allowed runs, without stopping early, could distinguish it from the promised rate (equal steps on
        the arcsine scale are equally hard to distinguish). The other half is for tests in between. It is never below
        half the promise; a test that cannot rule that out in ``max_runs`` runs is undecided.
        """
        step = NormalDist().inv_cdf(self.confidence) * math.sqrt(2 / self.max_runs)
        angle = math.asin(math.sqrt(self.pass_rate)) - step
        return max(math.sin(angle) ** 2 if angle > 0 else 0.0, self.pass_rate / 2)

    def decide(self, runs: int, passes: int) -> Decision:
        """The answer after so many runs; ``open`` when another is needed."""
        if (early := self._early(runs, passes)) != "open" or runs < self.max_runs:
            return early
        return "broken" if runs - passes >= self._breaking_failures else "undecided"

    def ends(self, true_rate: float) -> dict[End, float]:
        """The exact probability of each end of a test that passes with probability *true_rate*."""
        return _ends(self.decide, self.max_runs, true_rate)

    @cached_property
    def _bound(self) -> float:
        return -math.log(1 - self.confidence)

    @cached_property
    def _pass_weight(self) -> float:
        return math.log(self.worse_rate / self.pass_rate)

    @cached_property
    def _failure_weight(self) -> float:
        promised = 1 - self.pass_rate
        return math.log((1 - self.worse_rate) / promised) if promised > 0 else math.inf

    def _early(self, runs: int, passes: int) -> Decision:
        failures = runs - passes
        balance = passes * self._pass_weight
        if failures:
            balance += failures * self._failure_weight
        if balance >= self._bound - _ROUNDING:
            return "broken"
        return "kept" if balance <= -self._bound + _ROUNDING else "open"

    @cached_property
    def _breaking_failures(self) -> int:
        """The number of failures that breaks the promise once all runs are used: as few as the confidence allows, by
        themselves and together with what was broken early. If every run failed it is broken in any case."""
        ends = _ends(self._early, self.max_runs, self.pass_rate)
        doubt = 1 - self.confidence + _ROUNDING
        allowed = doubt - sum(weight for (answer, _, _), weight in ends.items() if answer == "broken")
        fewest = self.max_runs
        for passes in sorted(passes for answer, _, passes in ends if answer == "open"):
            failures = self.max_runs - passes
            allowed -= ends["open", self.max_runs, passes]
            if allowed < 0 or _at_least(self.max_runs, failures, 1 - self.pass_rate) > doubt:
                break
            fewest = failures
        return fewest


def _ends(decide: Callable[[int, int], Decision], max_runs: int, true_rate: float) -> dict[End, float]:
    ends: dict[End, float] = {}
    going = {0: 1.0}
    for runs in range(1, max_runs + 1):
        after: defaultdict[int, float] = defaultdict(float)
        for passes, weight in going.items():
            after[passes + 1] += weight * true_rate
            after[passes] += weight * (1 - true_rate)
        answers = {passes: decide(runs, passes) for passes in after}
        going = {passes: weight for passes, weight in after.items() if answers[passes] == "open"}
        closed = after if runs == max_runs else after.keys() - going.keys()
        ends.update({(answers[passes], runs, passes): after[passes] for passes in closed})
    return ends


def interval(runs: int, passes: int, confidence: float) -> tuple[float, float]:
    """The exact (Clopper-Pearson) interval of the pass rate, each bound at *confidence*.

    >>> low, high = interval(59, 59, 0.95)
    >>> round(low, 3), high
    (0.95, 1.0)
    """
    doubt = 1 - confidence
    low = 0.0 if passes == 0 else _solve(lambda rate: _at_least(runs, passes, rate) - doubt)
    high = 1.0 if passes == runs else _solve(lambda rate: doubt - _at_least(runs, runs - passes, 1 - rate))
    return low, high


def _at_least(runs: int, passes: int, rate: float) -> float:
    """The probability of so many passes or more."""
    if rate <= 0 or rate >= 1:
        return float(rate >= 1 or passes == 0)
    log_pass, log_fail = math.log(rate), math.log1p(-rate)
    ways = math.lgamma(runs + 1)
    return math.fsum(
        math.exp(ways - math.lgamma(n + 1) - math.lgamma(runs - n + 1) + n * log_pass + (runs - n) * log_fail)
        for n in range(passes, runs + 1)
    )


def _solve(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2

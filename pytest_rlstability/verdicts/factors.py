"""Which change of conditions makes a failure go away, or come more often: counts in, words out.

Every number is exact: Fisher's test on the two pairs of counts, multiplied by the number of comparisons that were made
(Bonferroni), looks at unfinished counts included. So the chance that any factor of a diagnosis is named wrongly is at
most 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

ALPHA = 0.05
LOOKS = (8, 16, 24)
"""Runs of one factor after which its counts are compared with the plain ones."""
MOST = LOOKS[-1]
_ENOUGH_DEATHS = 8
_SHORTEST_SCREEN = 3
_LIKELY = 0.25
_MISSED = 0.05
"""How often a change that removes the failure may look like one that does nothing after the first few runs."""


class Effect(StrEnum):
    """What a change does to a failure."""

    GOES_AWAY = "goes away"
    LESS_OFTEN = "less often"
    MORE_OFTEN = "more often"
    NO_DIFFERENCE = "no difference"
    NOT_DECIDED = "not decided"


@dataclass(frozen=True)
class Counts:
    """How many of *runs* failed as the one that is diagnosed did. *others* failed in another way and do not count."""

    died: int = 0
    runs: int = 0
    others: int = 0

    @property
    def rate(self) -> float:
        return self.died / self.runs if self.runs else 0.0

    def add(self, died: bool | None) -> Counts:
        """One more run; None: it failed in another way."""
        if died is None:
            return replace(self, others=self.others + 1)
        return replace(self, died=self.died + died, runs=self.runs + 1)

    def __str__(self) -> str:
        return f"{self.died} of {self.runs}"


@dataclass(frozen=True)
class Finding:
    """What is known of one factor. *p* is corrected for all comparisons."""

    factor: str
    counts: Counts
    p: float
    effect: Effect


def fisher(one: Counts, other: Counts) -> float:
    """The chance of counts at least as far apart as these if both had the same rate (two-sided, exact).

    >>> round(fisher(Counts(8, 8), Counts(0, 8)), 5), fisher(Counts(2, 4), Counts(2, 4))
    (0.00016, 1.0)
    """
    died, runs = one.died + other.died, one.runs + other.runs
    low, high = max(0, died - other.runs), min(one.runs, died)

    def chance(number: int) -> float:
        return math.comb(one.runs, number) * math.comb(other.runs, died - number) / math.comb(runs, died)

    seen = chance(one.died) * (1 + 1e-9)
    p = math.fsum(chance(number) for number in range(low, high + 1) if chance(number) <= seen)
    return min(1.0, round(p, 15))


def knows_rate(plain: Counts) -> bool:
    """Whether the plain runs are enough to compare with: they all failed, enough of them did, or there were many.

    >>> knows_rate(Counts(7, 7)), knows_rate(Counts(8, 8)), knows_rate(Counts(5, 10)), knows_rate(Counts(0, 24))
    (False, True, False, True)
    """
    return plain.died >= _ENOUGH_DEATHS or plain.runs >= MOST


def rate_bound(plain: Counts, confidence: float = 0.95) -> float:
    """The highest failure rate that so many passes in a row leave possible.

    >>> round(rate_bound(Counts(0, 24)), 3)
    0.117
    """
    return 1.0 if not plain.runs else 1 - (1 - confidence) ** (1 / plain.runs)


def judge_factor(factor: str, plain: Counts, changed: Counts, factors: int) -> Finding:
    """The finding on one of so many *factors*."""
    p = min(1.0, fisher(plain, changed) * factors * len(LOOKS))
    effect = Effect.NO_DIFFERENCE
    if p <= ALPHA:
        lower = Effect.LESS_OFTEN if changed.died else Effect.GOES_AWAY
        effect = Effect.MORE_OFTEN if changed.rate > plain.rate else lower
    elif changed.runs < _SHORTEST_SCREEN or changed.others > changed.runs or _looks_different(plain, changed):
        effect = Effect.NOT_DECIDED
    return Finding(factor, changed, p, effect)


def next_factor(plain: Counts, changed: Mapping[str, Counts], factors: Sequence[str]) -> str | None:
    """The factor whose next run tells most: first every factor a few times, then those that look different from the
    plain runs, most different first, up to the next look. None when there is nothing more to learn.

    >>> always = Counts(8, 8)
    >>> next_factor(always, {"a": Counts(3, 3), "b": Counts(0, 3)}, ["a", "b"])
    'b'
    >>> next_factor(always, {"a": Counts(3, 3), "b": Counts(0, 8)}, ["a", "b"])
    """
    known = {factor: changed.get(factor, Counts()) for factor in factors}
    for factor, counts in known.items():
        if counts.runs + counts.others < _screen(plain):
            return factor
    open_ones = [
        factor
        for factor, counts in known.items()
        if counts.runs < MOST
        and counts.others <= counts.runs
        and _looks_different(plain, counts)
        and not (counts.runs in LOOKS and judge_factor(factor, plain, counts, len(factors)).p <= ALPHA)
    ]
    return max(open_ones, key=lambda factor: abs(known[factor].rate - plain.rate), default=None)


def _screen(plain: Counts) -> int:
    """Runs after which a factor that makes a failure go away would most likely have shown one pass too many."""
    if plain.rate >= 0.9:
        return _SHORTEST_SCREEN
    return min(LOOKS[0], math.ceil(math.log(_MISSED) / math.log(1 - max(plain.rate, 0.05))))


def _looks_different(plain: Counts, changed: Counts) -> bool:
    """Whether the counts are far enough apart to be worth more runs."""
    return changed.runs > 0 and fisher(plain, changed) <= _LIKELY

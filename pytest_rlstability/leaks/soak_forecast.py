"""What a soak's report says for information: whether laps slow down, and when memory runs out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pytest_rlstability.model.growth import spread
from pytest_rlstability.verdicts.leak import Evidence, Rule, judge

_FEWEST = 8
_DRIFT = 1.25
"""Laps count as slower or faster from this factor on. A busy machine causes smaller ones."""
_SURE = 2.0
"""They must also differ by this many standard deviations of single laps."""
_MEMORY_RULE = Rule(smallest=2.0**20, resolution=64.0)


@dataclass(frozen=True)
class Pace:
    """Seconds a lap took in the first and in the last quarter of the time; *drifts* when they differ beyond noise."""

    first: float
    last: float
    drifts: bool


def pace(moments: Sequence[float], lap_seconds: Sequence[float]) -> Pace:
    """How lap times changed: *lap_seconds* is what a lap took at each of *moments*.

    >>> moments = list(range(100))
    >>> pace(moments, [0.012 if moment < 50 else 0.019 for moment in moments])
    Pace(first=0.012, last=0.019, drifts=True)
    """
    if len(moments) < _FEWEST:
        middle = median(lap_seconds) if lap_seconds else 0.0
        return Pace(middle, middle, drifts=False)
    start, quarter = moments[0], (moments[-1] - moments[0]) / 4
    early = [value for moment, value in zip(moments, lap_seconds, strict=True) if moment <= start + quarter]
    late = [value for moment, value in zip(moments, lap_seconds, strict=True) if moment >= start + 3 * quarter]
    first, last = median(early), median(late)
    factor = max(first, last) / max(min(first, last), 1e-12)
    return Pace(first, last, factor >= _DRIFT and abs(last - first) > _SURE * max(spread(early), spread(late)))


def growth_per_second(moments: Sequence[float], memory: Sequence[float]) -> float:
    """Bytes per second by which *memory* still grows; 0 if it does not grow or levels off.

    >>> seconds = list(range(200))
    >>> growth_per_second(seconds, [5e8 + 1e5 * second for second in seconds])
    100000.0
    >>> growth_per_second(seconds, [5e8 + 1e5 * min(second, 60) for second in seconds])
    0.0
    """
    if len(moments) < _FEWEST:
        return 0.0
    span = moments[-1] - moments[0]
    judged = judge(moments, memory, _MEMORY_RULE, Evidence(laps=span, seconds=span, budget=span, final=True))
    return max(judged.per_lap, 0.0) if judged.growing else 0.0

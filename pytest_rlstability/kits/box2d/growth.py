"""Judges the growth of counts: pure functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from pytest_rlstability.model.growth import FEWEST_SECONDS, concordance, mean_rate
from pytest_rlstability.model.series import SampleTable

MINIMUM_LAPS = 12
"""Laps before growth without a limit is judged."""
SURE_TREND = 4.0
"""Standard deviations; chance alone gets there once in 30,000 looks."""
STEADY = 0.8
"""Share of the first half's growth that the second half must have."""


@dataclass(frozen=True)
class Limits:
    """What one count may do. ``warning`` and ``critical`` bound the count itself: beyond the first the test
    warns, beyond the second it fails. ``per_lap`` and ``per_minute`` bound its growth. A count with neither
    ``critical`` nor ``per_lap`` must not keep growing.

    ``Limits(warning=50, critical=100, per_lap=0, per_minute=5)``
    """

    warning: float | None = None
    critical: float | None = None
    per_lap: float | None = None
    per_minute: float | None = None

    @classmethod
    def of(cls, value: Limits | dict[str, float]) -> Limits:
        if isinstance(value, Limits):
            return value
        known = [field.name for field in fields(cls)]
        for name in value:
            if name not in known:
                raise ValueError(f"unknown limit {name!r}: choose from {', '.join(known)}")
        return cls(**value)


@dataclass(frozen=True)
class Sample:
    """A count at the end of a lap; lap 0 is when the watch began."""

    lap: int
    seconds: float
    count: int


def samples_of(table: SampleTable, name: str) -> list[Sample]:
    """The counts of *name*, lap by lap. A class that was first seen later counted 0 until then."""
    counts = (0 if math.isnan(count) else int(count) for count in table.column(name))
    rows = zip(table.laps, table.seconds, counts, strict=False)
    return [Sample(int(lap), seconds, count) for lap, seconds, count in rows]


def growth_per_lap(samples: Sequence[Sample]) -> float:
    """Mean growth per lap after the first, which sets things up."""
    settled = _settled(samples)
    return mean_rate([sample.lap for sample in settled], [sample.count for sample in settled])


def _settled(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.lap > 0]


def growth_per_minute(samples: Sequence[Sample]) -> float | None:
    """Growth per minute, or ``None`` when too little time has passed."""
    if not samples or samples[-1].seconds - samples[0].seconds < FEWEST_SECONDS:
        return None
    return 60 * mean_rate([sample.seconds for sample in samples], [sample.count for sample in samples])


def keeps_growing(samples: Sequence[Sample]) -> bool:
    """Whether the count rises more than chance explains (Mann-Kendall's test), and as fast in the second half as in
    the first. A pool that fills up does not, nor does a race track that differs from lap to lap."""
    counts = [sample.count for sample in _settled(samples)]
    if len(counts) < MINIMUM_LAPS or _trend(counts) < SURE_TREND:
        return False
    half = len(counts) // 2
    early, late = counts[half] - counts[0], counts[-1] - counts[-1 - half]
    return late > 0 and late >= STEADY * early


def _trend(counts: Sequence[int]) -> float:
    """Standard deviations by which pairs rise more often than they fall."""
    number = len(counts)
    return (concordance(counts) - 1) / math.sqrt(number * (number - 1) * (2 * number + 5) / 18)


def beyond(name: str, samples: Sequence[Sample], limits: Limits) -> str | None:
    """Which limit the count *name* exceeds, in a sentence; ``None`` when it exceeds none."""
    if not samples:
        return None
    newest, laps = samples[-1].count, samples[-1].lap
    per_lap, per_minute = growth_per_lap(samples), growth_per_minute(samples)
    if limits.critical is not None and newest > limits.critical:
        return f"{name} reached {newest}, beyond the critical limit of {limits.critical:g}"
    if limits.per_lap is not None and per_lap > limits.per_lap:
        return f"{name} grew by {per_lap:.3g} per lap over {laps} laps, limit {limits.per_lap:g}"
    if limits.per_minute is not None and per_minute is not None and per_minute > limits.per_minute:
        return f"{name} grew by {per_minute:.3g} per minute, limit {limits.per_minute:g}"
    if limits.per_lap is None and limits.critical is None and keeps_growing(samples):
        return f"{name} grew by {per_lap:.3g} per lap over {laps} laps without levelling off"
    return None

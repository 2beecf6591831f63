"""From counts per lap to a finding: pure functions of numbers."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

MINIMUM_LAPS = 12
"""Laps before growth without a limit is judged."""
SURE_TREND = 4.0
"""Standard deviations; chance alone gets there once in 30,000 looks."""
STEADY = 0.8
"""Share of the early growth that growth in the second half must still have."""
MINIMUM_SECONDS = 5.0
"""Time over which growth per minute is judged; over less it would be guessing."""


@dataclass(frozen=True)
class Limits:
    """What one count may do. ``warning`` and ``critical`` bound the count itself: beyond the first the test
    warns, beyond the second it fails. ``per_lap`` and ``per_minute`` bound its growth. A count with neither
    ``critical`` nor ``per_lap`` must not grow for ever.

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
                raise ValueError(f"unknown limit {name!r}: one of {', '.join(known)} is accepted")
        return cls(**value)


@dataclass(frozen=True)
class Sample:
    """A count at the end of a lap; lap 0 is when the watch began."""

    lap: int
    seconds: float
    count: int


class Course:
    """The counts of a world, lap by lap, in memory that is taken once: a record that grew with the laps would be
    the very thing that it is to find. When it is full, every second lap between the first and the newest goes."""

    def __init__(self, capacity: int = 128) -> None:
        self._laps = array("q", [0]) * capacity
        self._seconds = array("d", [0.0]) * capacity
        self._counts: dict[str, array[int]] = {}
        self._size = 0

    @property
    def names(self) -> list[str]:
        return list(self._counts)

    def add(self, lap: int, seconds: float, counts: Mapping[str, int]) -> None:
        """Note the counts at the end of *lap*; a second note of the same lap replaces the first."""
        if self._size > 1 and self._laps[self._size - 1] == lap:
            self._size -= 1
        elif self._size == len(self._laps):
            self._thin_out()
        self._laps[self._size], self._seconds[self._size] = lap, seconds
        for name in counts:
            if name not in self._counts:
                self._counts[name] = array("q", [0]) * len(self._laps)
        for name, column in self._counts.items():
            column[self._size] = counts.get(name, 0)
        self._size += 1

    def _thin_out(self) -> None:
        kept = [0, 1, *range(3, self._size - 1, 2), self._size - 1]
        columns: list[Any] = [self._laps, self._seconds, *self._counts.values()]
        for column in columns:
            for place, index in enumerate(kept):
                column[place] = column[index]
        self._size = len(kept)

    def samples(self, name: str) -> list[Sample]:
        column = self._counts[name]
        return [Sample(self._laps[index], self._seconds[index], column[index]) for index in range(self._size)]


def growth_per_lap(samples: Sequence[Sample]) -> float:
    """Mean growth per lap after the first, which sets things up."""
    settled = _settled(samples)
    if len(settled) < 2:
        return 0.0
    return (settled[-1].count - settled[0].count) / (settled[-1].lap - settled[0].lap)


def _settled(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.lap > 0]


def growth_per_minute(samples: Sequence[Sample]) -> float | None:
    """Growth per minute, or ``None`` when too little time has passed to tell."""
    if not samples or samples[-1].seconds - samples[0].seconds < MINIMUM_SECONDS:
        return None
    return (samples[-1].count - samples[0].count) * 60.0 / (samples[-1].seconds - samples[0].seconds)


def keeps_growing(samples: Sequence[Sample]) -> bool:
    """Whether the count rises beyond what chance does to counts that merely vary (Mann-Kendall's test), and as
    fast in the second half as in the first. A pool that fills up, or a race track that is another one each lap,
    does not do that."""
    counts = [sample.count for sample in _settled(samples)]
    if len(counts) < MINIMUM_LAPS or _trend(counts) < SURE_TREND:
        return False
    half = len(counts) // 2
    early, late = counts[half] - counts[0], counts[-1] - counts[-1 - half]
    return late > 0 and late >= STEADY * early


def _trend(counts: Sequence[int]) -> float:
    """Mann and Kendall's statistic: standard deviations by which pairs rise more often than they fall."""
    number = len(counts)
    score = sum((later > earlier) - (later < earlier) for earlier, later in combinations(counts, 2))
    return (score - 1) / math.sqrt(number * (number - 1) * (2 * number + 5) / 18)


def beyond(name: str, samples: Sequence[Sample], limits: Limits) -> str | None:
    """What *samples* of the count *name* do that they must not, in a sentence; ``None`` when all is well."""
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

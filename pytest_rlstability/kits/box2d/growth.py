"""Judges the growth of counts: pure functions of numbers."""

from __future__ import annotations

import math
from bisect import bisect_right
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
    """What one count may do. ``warning`` and ``critical`` bound the count itself: beyond the first the test warns,
    beyond the second it fails. ``per_lap`` and ``per_minute`` bound its growth. A count with neither ``critical`` nor
    ``per_lap`` must not keep growing."""

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
class Counts:
    """One count at the end of each lap; lap 0 is when the watch began."""

    laps: Sequence[float]
    seconds: Sequence[float]
    values: Sequence[int]

    @classmethod
    def of(cls, table: SampleTable, name: str) -> Counts:
        """The counts of *name*. A class that was first seen later counted 0 until then."""
        return cls(table.laps, table.seconds, [0 if math.isnan(count) else int(count) for count in table.column(name)])

    @property
    def _settled(self) -> slice:
        """The laps after the first, which sets things up; everything, where no lap has ended."""
        first = bisect_right(self.laps, 0)
        return slice(first if first < len(self.laps) else 0, None)

    @property
    def per_lap(self) -> float:
        """Mean growth per lap."""
        return mean_rate(self.laps[self._settled], self.values[self._settled])

    @property
    def per_minute(self) -> float | None:
        """Mean growth per minute, or ``None`` when too little time has passed."""
        seconds = self.seconds[self._settled]
        if seconds[-1] - seconds[0] < FEWEST_SECONDS:
            return None
        return 60 * mean_rate(seconds, self.values[self._settled])

    def keep_growing(self) -> bool:
        """Whether the count rises more than chance explains (Mann-Kendall's test), and as fast in the second half as in
        the first. A pool that fills up does not, nor does a race track that differs from lap to lap."""
        values = self.values[self._settled]
        number, half = len(values), len(values) // 2
        if number < MINIMUM_LAPS:
            return False
        deviations = (concordance(values) - 1) / math.sqrt(number * (number - 1) * (2 * number + 5) / 18)
        early, late = values[half] - values[0], values[-1] - values[-1 - half]
        return deviations >= SURE_TREND and late > 0 and late >= STEADY * early

    def beyond(self, limits: Limits) -> str:
        """Which limit they exceed, as the end of a sentence; empty when they exceed none."""
        if not self.values:
            return ""
        newest, laps = self.values[-1], f"over {int(self.laps[-1])} laps"
        per_lap, per_minute = self.per_lap, self.per_minute
        if limits.critical is not None and newest > limits.critical:
            return f"reached {newest}, beyond the critical limit of {limits.critical:g}"
        if limits.per_lap is not None and per_lap > limits.per_lap:
            return f"grew by {per_lap:.3g} per lap {laps}, limit {limits.per_lap:g}"
        if limits.per_minute is not None and per_minute is not None and per_minute > limits.per_minute:
            return f"grew by {per_minute:.3g} per minute, limit {limits.per_minute:g}"
        if limits.per_lap is None and limits.critical is None and self.keep_growing():
            return f"grew by {per_lap:.3g} per lap {laps} without levelling off"
        return ""

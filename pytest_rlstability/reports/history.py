"""The samples of one test, thinned to a bounded number, and what they say of growth and of lap times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

CAPACITY = 96
FEWEST = 9
"""Samples before growth is told: three to begin with, three in the middle and three at the end."""
FEWEST_SECONDS = 5.0
"""Time that growth per minute is told from."""
_NORMAL = 1.4826
"""Turns a median absolute deviation into a standard deviation, were the noise normal."""
_POLISHINGS = 3
"""Rounds in which what is left of the slope is added to it."""


@dataclass(frozen=True)
class Growth:
    """How a value grows, and by how much that may be wrong: its standard error per lap. Growth per minute is not
    guessed from seconds: ``None`` until there is enough to tell it from."""

    per_lap: float
    per_minute: float | None
    error: float
    laps: float


class History:
    """Laps, seconds and values of a test's samples, evenly thinned when there are too many.

    ``history.add(lap=10, seconds=1.5, values={"rss": 4e7})``, then ``history.growth("rss")``.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._laps: list[float] = []
        self._seconds: list[float] = []
        self._cpu_seconds: list[float] = []
        self._columns: dict[str, list[float]] = {}
        self._stride = 1
        self._heard = 0
        self._known: dict[str, Growth | None] = {}

    def hear(self, sample: Mapping[str, Any]) -> None:
        """Take in a ``sample`` event; one that says nothing of its own clock is dated by the event's."""
        seconds, cpu = sample.get("seconds", sample["time"]), sample.get("cpu_seconds", math.nan)
        self.add(float(sample.get("lap", 0)), float(seconds), sample["values"], float(cpu))

    def add(self, lap: float, seconds: float, values: Mapping[str, float], cpu_seconds: float = math.nan) -> None:
        kept = self._heard % self._stride == 0
        self._heard += 1
        if not kept or (self._laps and lap <= self._laps[-1]):
            return
        for name in values:
            if name not in self._columns:
                self._columns[name] = [math.nan] * len(self._laps)
        self._laps.append(lap)
        self._seconds.append(seconds)
        self._cpu_seconds.append(cpu_seconds)
        for name, column in self._columns.items():
            column.append(float(values.get(name, math.nan)))
        self._known.clear()
        if len(self._laps) == self._capacity:
            self._thin_out()

    def _thin_out(self) -> None:
        self._stride *= 2
        for column in (self._laps, self._seconds, self._cpu_seconds, *self._columns.values()):
            del column[1::2]

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._columns)

    @property
    def seconds(self) -> float:
        """The time from the first sample to the last."""
        return self._seconds[-1] - self._seconds[0] if self._seconds else 0.0

    def lap_seconds(self) -> list[float]:
        """Seconds per lap, from each sample to the next; the first third, in which things warm up, is left out."""
        return self._per_lap(self._seconds)

    def lap_cpu_seconds(self) -> list[float]:
        """As ``lap_seconds``, of processor time; empty where that was not sampled."""
        return [seconds for seconds in self._per_lap(self._cpu_seconds) if not math.isnan(seconds)]

    def _per_lap(self, clock: Sequence[float]) -> list[float]:
        first = len(self._laps) // 3
        moments = zip(self._laps[first:], clock[first:], strict=True)
        return [(now - before) / (lap - lap_before) for (lap_before, before), (lap, now) in pairwise(moments)]

    def growth(self, name: str) -> Growth | None:
        """How *name* grows, or ``None`` when too few samples have it."""
        if name not in self._known:
            self._known[name] = self._fit(name)
        return self._known[name]

    def _fit(self, name: str) -> Growth | None:
        column = self._columns.get(name, [])
        points = [point for point in zip(self._laps, self._seconds, column, strict=False) if not math.isnan(point[2])]
        if len(points) < FEWEST:
            return None
        laps, seconds, values = zip(*points, strict=True)
        per_lap, error = slope(laps, values)
        per_minute = None
        if seconds[-1] - seconds[0] >= FEWEST_SECONDS:
            per_minute = 60 * slope(seconds, values)[0]
        return Growth(per_lap, per_minute, error, laps[-1] - laps[0])


def slope(positions: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """The rise from the middle third to the last, and its standard error; the first third is the warm-up.

    Each third stands for itself by the median of what the slope leaves of it (Tukey's resistant line), so that
    single spikes do not count.

    >>> slope(range(9), [9, 9, 9, 2, 3, 4, 5, 6, 7])
    (1.0, 0.0)
    """
    third = len(values) // 3
    middle, last = slice(-2 * third, -third), slice(-third, None)
    distance = median(positions[last]) - median(positions[middle])
    if distance <= 0:
        return 0.0, 0.0
    rise = 0.0
    for _ in range(_POLISHINGS):
        rest = [value - rise * position for position, value in zip(positions, values, strict=True)]
        rise += (median(rest[last]) - median(rest[middle])) / distance
    rest = [value - rise * position for position, value in zip(positions, values, strict=True)]
    noise = spread(rest[-2 * third :])
    # The median of n normal numbers errs by 1.25 standard deviations / sqrt(n); here are two.
    return rise, noise * 1.25 * math.sqrt(2 / third) / distance


def spread(numbers: Sequence[float]) -> float:
    """The standard deviation of *numbers* as the median absolute deviation tells it: outliers do not count.

    >>> spread([1.0, 1.0, 1.0, 1.0, 50.0])
    0.0
    """
    if not numbers:
        return 0.0
    center = median(numbers)
    return _NORMAL * median(abs(number - center) for number in numbers)

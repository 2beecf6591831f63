"""Growth and lap times of one test, from its samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from pytest_rlstability.model.events import Sample
from pytest_rlstability.model.growth import Growth, growth
from pytest_rlstability.model.series import SampleTable

CAPACITY = 96
_PROCESSOR = "processor seconds"
"""The column of the test's processor time. It is a clock, not a signal."""


class History:
    """The samples of one test, in a bounded number of rows: ``history.handle(sample)``, ``history.growth("rss")``."""

    def __init__(self) -> None:
        self._table = SampleTable(CAPACITY)
        self._known: dict[str, Growth | None] = {}

    def handle(self, sample: Sample) -> None:
        """Take in a sample; if it has no clock of its own, the event's time counts."""
        seconds = sample.time if sample.seconds is None else sample.seconds
        cpu_seconds = {} if sample.cpu_seconds is None else {_PROCESSOR: sample.cpu_seconds}
        self._table.add(sample.lap, seconds, {**sample.values, **cpu_seconds})
        self._known.clear()

    def __len__(self) -> int:
        return len(self._table)

    @property
    def names(self) -> Sequence[str]:
        return [name for name in self._table.names if name != _PROCESSOR]

    @property
    def seconds(self) -> float:
        """The time from the first sample to the last."""
        return self._table.seconds[-1] - self._table.seconds[0] if len(self._table) else 0.0

    def lap_seconds(self) -> list[float]:
        """Seconds per lap, from each sample to the next. The first third, the warm-up, is left out."""
        return self._per_lap(self._table.seconds)

    def lap_cpu_seconds(self) -> list[float]:
        """As ``lap_seconds``, of processor time; empty where that was not sampled."""
        return [seconds for seconds in self._per_lap(self._table.column(_PROCESSOR)) if not math.isnan(seconds)]

    def _per_lap(self, clock: Sequence[float]) -> list[float]:
        moments = list(zip(self._table.laps, clock, strict=False))[len(self._table) // 3 :]
        return [
            (now - before) / (lap - lap_before)
            for (lap_before, before), (lap, now) in pairwise(moments)
            if lap > lap_before
        ]

    def growth(self, name: str) -> Growth | None:
        """How *name* grows, or ``None`` when too few samples have it."""
        if name not in self._known:
            rows = zip(self._table.laps, self._table.seconds, self._table.column(name), strict=False)
            points = [row for row in rows if not math.isnan(row[2])]
            self._known[name] = growth(*zip(*points, strict=True)) if points else None
        return self._known[name]

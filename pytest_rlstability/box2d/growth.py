"""From counts per lap to a finding: pure functions of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

MINIMUM_LAPS = 6
"""Laps after the first before growth without a limit is judged."""
MINIMUM_SECONDS = 5.0
"""Time over which growth per minute is judged; over less it would be guessing."""


@dataclass(frozen=True)
class Limits:
    """What one count may do. ``warning`` and ``critical`` bound the count itself: beyond the first the test
    warns, beyond the second it fails. ``per_lap`` and ``per_minute`` bound its growth.

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


def growth_per_lap(samples: Sequence[Sample]) -> float:
    """Mean growth per lap after the first, which sets things up."""
    settled = _settled(samples)
    if len(settled) < 2:
        return 0.0
    return (settled[-1].count - settled[0].count) / (settled[-1].lap - settled[0].lap)


def _settled(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.lap > 0]


def thinned(samples: list[Sample], keep: int) -> list[Sample]:
    """At most *keep* of *samples*, evenly, with the first two and the newest among them: a soak has many laps."""
    return samples if len(samples) <= keep else [*samples[:2], *samples[3:-1:2], samples[-1]]


def growth_per_minute(samples: Sequence[Sample]) -> float | None:
    """Growth per minute, or ``None`` when too little time has passed to tell."""
    if not samples or samples[-1].seconds - samples[0].seconds < MINIMUM_SECONDS:
        return None
    return (samples[-1].count - samples[0].count) * 60.0 / (samples[-1].seconds - samples[0].seconds)


def keeps_growing(samples: Sequence[Sample]) -> bool:
    """Whether the count grows without end: the low points of the last three thirds rise, and do not level off.
    A pool that fills up, or a track that differs from lap to lap, does not do that."""
    settled = [sample.count for sample in _settled(samples)]
    if len(settled) < MINIMUM_LAPS:
        return False
    third = len(settled) // 3
    last = settled[len(settled) - 3 * third :]
    low = [min(last[part * third : (part + 1) * third]) for part in range(3)]
    early, late = low[1] - low[0], low[2] - low[1]
    return early > 0 and late > 0 and late >= 0.5 * early


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
    if limits.per_lap is None and keeps_growing(samples):
        return f"{name} grew by {per_lap:.3g} per lap over {laps} laps without levelling off"
    return None

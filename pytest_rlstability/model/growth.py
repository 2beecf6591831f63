"""How fast numbers grow: pure functions of positions (laps, seconds) and values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

FEWEST_SAMPLES = 9
"""Growth is fitted from so many samples on: three for the warm-up, three in the middle and three at the end."""
FEWEST_SECONDS = 5.0
"""Growth per minute is computed from so many seconds on; over fewer it would be a guess."""
_NORMAL = 1.4826
"""Turns a median absolute deviation into a standard deviation, for normal noise."""
_ROUNDS = 3
"""How often the residuals of the slope are fitted again."""
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class Growth:
    """How a value grows over *laps* laps. *error* is the standard error of *per_lap*. *per_minute* is ``None`` when the
    samples cover too little time."""

    per_lap: float
    per_minute: float | None
    error: float
    laps: float


def growth(laps: Sequence[float], seconds: Sequence[float], values: Sequence[float]) -> Growth | None:
    """How *values* grow after the first third of the samples, the warm-up; ``None`` when there are too few."""
    if len(values) < FEWEST_SAMPLES:
        return None
    settled = slice(-2 * (len(values) // 3), None)
    per_lap = slope(laps[settled], values[settled])
    enough = seconds[-1] - seconds[0] >= FEWEST_SECONDS
    per_minute = 60 * slope(seconds[settled], values[settled]) if enough else None
    return Growth(per_lap, per_minute, slope_error(laps[settled], values[settled], per_lap), laps[-1] - laps[0])


def slope(positions: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the line through the older and the newer half of the samples; 0 when there is no line.

    It makes the medians of the residuals of both halves equal (Tukey's resistant line). It is exact for numbers on a
    line. Single spikes and the teeth of a sawtooth do not count.

    >>> slope([0, 1, 2, 3, 4, 5], [0, 3, 6, 900, 12, 15])
    3.0
    """
    older, newer = _halves(values)
    distance = _distance(positions)
    rise = 0.0
    for _ in range(_ROUNDS if distance > 0 else 0):
        rest = [value - rise * position for position, value in zip(positions, values, strict=True)]
        more = (median(rest[newer]) - median(rest[older])) / distance
        if abs(more) <= _NEGLIGIBLE * abs(rise):
            break
        rise += more
    return rise


def slope_error(positions: Sequence[float], values: Sequence[float], rise: float) -> float:
    """The standard error of *rise*, which is the slope of these samples."""
    distance = _distance(positions)
    if distance <= 0:
        return 0.0
    rest = [value - rise * position for position, value in zip(positions, values, strict=True)]
    # The median of n normal numbers errs by 1.25 standard deviations / sqrt(n); a slope is the difference of two.
    return spread(rest) * 1.25 * math.sqrt(2 / (len(values) // 2)) / distance


def _halves(numbers: Sequence[float]) -> tuple[slice, slice]:
    half = len(numbers) // 2
    return slice(-2 * half, -half), slice(-half, None)


def _distance(positions: Sequence[float]) -> float:
    if len(positions) < 2:
        return 0.0
    older, newer = _halves(positions)
    return median(positions[newer]) - median(positions[older])


def mean_rate(positions: Sequence[float], values: Sequence[float]) -> float:
    """The change from the first value to the last, per unit of position; 0 when nothing lies between them."""
    distance = positions[-1] - positions[0] if len(positions) else 0
    return (values[-1] - values[0]) / distance if distance else 0.0


def concordance(values: Sequence[float]) -> int:
    """By how many more pairs of *values* rise than fall (Mann and Kendall's statistic).

    >>> concordance([1, 2, 3]), concordance([3, 2, 2])
    (3, -2)
    """
    return sum((later > earlier) - (later < earlier) for earlier, later in combinations(values, 2))


def spread(numbers: Sequence[float]) -> float:
    """The standard deviation of *numbers*, estimated by the median absolute deviation: outliers do not count."""
    if not numbers:
        return 0.0
    center = median(numbers)
    return _NORMAL * median(abs(number - center) for number in numbers)

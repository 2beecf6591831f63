"""The samples of one signal, in memory that was there before the first of them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

CAPACITY = 512
_BARS = "▁▂▃▄▅▆▇█"


class Series:
    """Laps and values in preallocated arrays; when full, neighbours are merged into the lower of the two.

    ``series.add(lap, value)``; ``series.laps`` and ``series.values`` are what there is.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._laps = array("d", bytes(8 * capacity))
        self._values = array("d", bytes(8 * capacity))
        self._capacity = capacity
        self._count = 0

    @classmethod
    def of(cls, laps: Sequence[float], values: Sequence[float]) -> Series:
        series = cls()
        for lap, value in zip(laps, values, strict=True):
            series.add(lap, value)
        return series

    def __len__(self) -> int:
        return self._count

    @property
    def laps(self) -> Sequence[float]:
        return self._laps[: self._count]

    @property
    def values(self) -> Sequence[float]:
        return self._values[: self._count]

    @property
    def last(self) -> float:
        return self._values[self._count - 1] if self._count else 0.0

    @property
    def growth(self) -> float:
        return self.last - self._values[0] if self._count else 0.0

    def add(self, lap: float, value: float) -> None:
        if self._count == self._capacity:
            self._halve()
        self._laps[self._count] = lap
        self._values[self._count] = value
        self._count += 1

    def clear(self) -> None:
        self._count = 0

    def _halve(self) -> None:
        # the first sample stays itself: growth is counted from it
        kept = 1
        for position in range(1, self._count - 1, 2):
            lower = position if self._values[position] <= self._values[position + 1] else position + 1
            self._laps[kept] = self._laps[lower]
            self._values[kept] = self._values[lower]
            kept += 1
        if self._count % 2 == 0:
            self._laps[kept] = self._laps[self._count - 1]
            self._values[kept] = self._values[self._count - 1]
            kept += 1
        self._count = kept


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """The course of *values* in a few characters.

    >>> sparkline([0, 1, 2, 3], width=4)
    '▁▃▆█'
    """
    if not values:
        return ""
    width = min(width, len(values))
    shown = [values[(position * len(values)) // width] for position in range(width - 1)] + [values[-1]]
    low, high = min(shown), max(shown)
    if high == low:
        return _BARS[0] * width
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in shown)

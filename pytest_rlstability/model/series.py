"""Samples over laps and time, thinned when there are too many, so that a week takes no more memory than a minute.

A signal that is judged has a ``Series``. A ``SampleTable`` has many that share the laps; for charts, a ``PeakTable``.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from locale import getencoding
from math import isfinite

from pytest_rlstability.model.units import format_duration, format_size

CAPACITY = 512
LAP_TIME = "lap_seconds"
"""The column of a ``PeakTable`` for seconds per lap, computed between one sample and the next."""
_BARS = "▁▂▃▄▅▆▇█"
try:
    _BARS.encode(getencoding())
except UnicodeEncodeError:  # a terminal of Windows would show escapes
    _BARS = "_.:-=+*#"
_NOTHING = math.nan
_FIRST_ROWS = 16
NEWEST = 8
"""So many of its newest samples a ``MemoryHistory`` shows one by one."""
_WIDTH = 32


class Series:
    """Positions (laps, minutes, seconds) and values of one signal. The memory is allocated once, because a sampler that
    allocates would measure its own growth. When it is full, the lower of each two neighbours stays, because growth is
    judged by the lowest values. The first sample always stays, because growth is counted from it."""

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

    def scale_growth(self, share: float) -> None:
        """Take the rest out of all growth since the first sample."""
        for position in range(1, self._count):
            self._values[position] = self._values[0] + share * (self._values[position] - self._values[0])

    def _halve(self) -> None:
        kept = 1
        for position in range(1, self._count, 2):
            after = min(position + 1, self._count - 1)
            lower = position if self._values[position] <= self._values[after] else after
            self._laps[kept] = self._laps[lower]
            self._values[kept] = self._values[lower]
            kept += 1
        self._count = kept


class SampleTable:
    """Rows of lap, seconds and one value per signal, ``nan`` where there was none. When there are *rows* of them, every
    second one is dropped, and from then on only every second sample is kept. The first two samples and the newest are
    always there. With *reserve* all memory of a signal is allocated when the signal is first seen."""

    def __init__(self, rows: int, *, reserve: bool = False) -> None:
        self.samples = 0
        """How many were added."""
        self._most = rows
        self._stride = 1
        self._size = 0
        allocated = rows if reserve else 0
        self._laps = array("d", [_NOTHING]) * allocated
        self._seconds = array("d", [_NOTHING]) * allocated
        self._columns: dict[str, array[float]] = {}

    def __len__(self) -> int:
        return self._size

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    @property
    def laps(self) -> Sequence[float]:
        return self._laps[: self._size]

    @property
    def seconds(self) -> Sequence[float]:
        return self._seconds[: self._size]

    def column(self, name: str) -> Sequence[float]:
        """The values of *name*, one per row; empty for an unknown name."""
        return self._columns[name][: self._size] if name in self._columns else ()

    def add(self, lap: float, seconds: float, values: Mapping[str, float]) -> None:
        """Add a sample. One of the newest lap replaces it (unless it is the first); one of an older lap is dropped."""
        newest = self._laps[self._size - 1] if self._size else -math.inf
        if lap < newest:
            return
        if self._size > 1 and lap == newest:
            self._size -= 1
        else:
            if self._size > 1 and (self.samples - 2) % self._stride:
                self._size -= 1
            self.samples += 1
        self._append(lap, seconds, values)
        if self._size == self._most:
            self._keep([0, *range(1, self._size - 1, 2), self._size - 1])
            self._stride *= 2

    def _append(self, lap: float, seconds: float, values: Mapping[str, float]) -> None:
        row = self._size
        if row == len(self._laps):
            for column in self._arrays():
                column.extend([_NOTHING] * max(row, _FIRST_ROWS))
        for name in values:
            if name not in self._columns:
                self._columns[name] = array("d", [_NOTHING]) * len(self._laps)
        self._laps[row], self._seconds[row] = lap, seconds
        for name, column in self._columns.items():
            column[row] = values.get(name, _NOTHING)
        self._size += 1

    def _keep(self, rows: Sequence[int]) -> None:
        for column in self._arrays():
            for place, row in enumerate(rows):
                column[place] = column[row]
        self._size = len(rows)

    def _arrays(self) -> Iterable[array[float]]:
        return (self._laps, self._seconds, *self._columns.values())


class PeakTable(SampleTable):
    """A table in which two rows stand for a stretch of samples: the lowest and the highest value of each signal, in
    the order in which they came, so that no peak is lost. It also has a column of lap times."""

    def __init__(self, rows: int = 2 * CAPACITY) -> None:
        super().__init__(rows)
        self._stretch = 2
        self._waiting: list[tuple[float, float, dict[str, float]]] = []
        self._before = (math.nan, math.nan)

    def add(self, lap: float, seconds: float, values: Mapping[str, float]) -> None:
        self.extend([lap], [seconds], [values])

    def extend(self, laps: Sequence[float], seconds: Sequence[float], values: Sequence[Mapping[str, float]]) -> None:
        """Add samples. If one holds anything but numbers it is a ``TypeError``, and none of them is added."""
        added = [
            (lap + 0.0, moment + 0.0, {name: value for name, value in sample.items() if isfinite(value)})
            for lap, moment, sample in zip(laps, seconds, values, strict=True)
        ]
        for lap, moment, sample in added:
            lap_before, moment_before = self._before
            if lap > lap_before:
                sample.setdefault(LAP_TIME, (moment - moment_before) / (lap - lap_before))
            self._before = lap, moment
            self._waiting.append((lap, moment, sample))
            if len(self._waiting) == self._stretch:
                self._settle()
        self.samples += len(added)

    def finish(self) -> None:
        """There are no more samples."""
        if self._waiting:
            self._settle()

    def shrink(self, rows: int) -> None:
        """Thin further, to at most *rows* rows (no fewer than 4)."""
        while self._size > max(rows, 4):
            self._halve()

    def _settle(self) -> None:
        """Make two rows of the samples that wait."""
        laps, seconds, samples = zip(*self._waiting, strict=True)
        names = {name: None for sample in samples for name in sample}
        peaks = {name: _extremes([sample[name] for sample in samples if name in sample]) for name in names}
        if len(samples) > 1:
            self._append(laps[0], seconds[0], {name: first for name, (first, _) in peaks.items()})
        self._append(laps[-1], seconds[-1], {name: last for name, (_, last) in peaks.items()})
        self._waiting.clear()
        if self._size >= self._most:
            self._halve()
            self._stretch *= 2

    def _halve(self) -> None:
        """Make two rows of each four."""
        fours = [(start, min(start + 4, self._size)) for start in range(0, self._size, 4)]
        peaks: list[tuple[array[float], list[float]]] = []
        for column in self._columns.values():
            values: list[float] = []
            for start, end in fours:
                known = [value for value in column[start:end] if value == value]
                values.extend(_extremes(known)[-min(end - start, 2) :])
            peaks.append((column, values))
        self._keep([row for start, end in fours for row in (start, end - 1)[-min(end - start, 2) :]])
        for column, values in peaks:
            column[: self._size] = array("d", values)


def _extremes(values: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest of *values* in the order in which they came."""
    if not values:
        return _NOTHING, _NOTHING
    low, high = min(values), max(values)
    return (low, high) if low == high or values.index(low) <= values.index(high) else (high, low)


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """A chart of *values* in a few characters: ``▁▃▆█``."""
    if not values:
        return ""
    width = min(width, len(values))
    shown = [values[(position * len(values)) // width] for position in range(width - 1)] + [values[-1]]
    low, high = min(shown), max(shown)
    if high == low:
        return _BARS[0] * width
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in shown)


class MemoryHistory:
    """The memory of a test over time, for the report of a test that died: the newest samples, and a thinned series."""

    def __init__(self) -> None:
        self._newest: deque[tuple[float, int, float]] = deque(maxlen=NEWEST)
        self._course = Series(2 * _WIDTH)

    def add(self, seconds: float, lap: int, memory: float) -> None:
        self._course.add(seconds, memory)
        self._newest.append((seconds, lap, memory))

    def text(self) -> str:
        """A line with a chart of all samples, and one for each of the newest; empty with fewer than two samples."""
        if len(self._course) < 2:
            return ""
        first, last = self._course.values[0], self._course.last
        lines = [f"{format_size(first)} {sparkline(self._course.values, _WIDTH)} {format_size(last)} resident"]
        for seconds, lap, memory in self._newest:
            lines.append(f"after {format_duration(seconds):>12}  lap {lap:>8}  {format_size(memory):>10}")
        return "\n".join(lines)

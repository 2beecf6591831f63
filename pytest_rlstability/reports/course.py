"""The samples of one test, thinned while they arrive: an eight-hour soak takes no more room than a minute's."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from operator import itemgetter

ROWS = 1024
"""A course never holds more rows than this: about one for each pixel of a wide chart."""
LAP_TIME = "lap_seconds"
"""The column of seconds per lap, worked out between one sample and the next."""
_NOTHING = math.nan


class Course:
    """How a test's signals went: rows of lap, seconds and one value per signal (``nan`` where there was none).

    ``course.add([lap], [seconds], [{"rss": 1e6}])`` for every sample or many of them, ``finish()`` after the last, then
    read ``laps``, ``seconds`` and ``columns``. Once there are too many samples, two rows stand for a stretch of them:
    the lowest and the highest value of each signal, in the order in which they came, so that no peak is ever lost.
    """

    def __init__(self, rows: int = ROWS) -> None:
        self.laps = array("d")
        self.seconds = array("d")
        self.columns: dict[str, array[float]] = {}
        self.samples = 0
        self._rows = rows
        self._stretch = 2
        self._waiting_laps: list[float] = []
        self._waiting_seconds: list[float] = []
        self._waiting: list[Mapping[str, float]] = []
        self._before = (math.nan, math.nan)

    def add(self, laps: Sequence[float], seconds: Sequence[float], values: Sequence[Mapping[str, float]]) -> None:
        """Take in samples. One that holds anything but numbers is a ``TypeError``, and none of them is taken."""
        # the quickest look at all of the numbers: a text or None among them raises
        totals = [sum(sample.values()) for sample in values]
        if not math.isfinite(sum(totals) + sum(laps) + sum(seconds)):
            values = [{name: value for name, value in sample.items() if math.isfinite(value)} for sample in values]
        self.samples += len(values)
        self._waiting_laps += laps
        self._waiting_seconds += seconds
        self._waiting += values
        while len(self._waiting) >= self._stretch:
            self._settle(self._stretch)

    def finish(self) -> None:
        """There are no more samples."""
        if self._waiting:
            self._settle(len(self._waiting))

    def thin(self, rows: int) -> None:
        """Thin further, to at most *rows* rows (no fewer than 4)."""
        while len(self.laps) > max(rows, 4):
            self._halve()

    def _settle(self, count: int) -> None:
        """Let two rows stand for the first *count* samples that wait."""
        laps, self._waiting_laps = self._waiting_laps[:count], self._waiting_laps[count:]
        seconds, self._waiting_seconds = self._waiting_seconds[:count], self._waiting_seconds[count:]
        samples, self._waiting = self._waiting[:count], self._waiting[count:]
        settled = _by_name(samples)
        if (lap_times := self._lap_times(laps, seconds)) and LAP_TIME not in settled:
            settled[LAP_TIME] = lap_times
        for name in settled:
            if name not in self.columns:
                self.columns[name] = array("d", [_NOTHING]) * len(self.laps)
        ends = 1 if count == 1 else 2
        for name, column in self.columns.items():
            column.extend(_extremes(settled.get(name, ()), ends))
        self.laps.extend((laps[0], laps[-1])[-ends:])
        self.seconds.extend((seconds[0], seconds[-1])[-ends:])
        if len(self.laps) >= self._rows:
            self._halve()
            self._stretch *= 2

    def _lap_times(self, laps: Sequence[float], seconds: Sequence[float]) -> list[float]:
        """Seconds per lap between each sample and the one before it, wherever there were laps in between."""
        lap, second = self._before
        before = zip((lap, *laps), (second, *seconds), strict=True)
        self._before = (laps[-1], seconds[-1])
        return [
            (later - earlier) / (to - since)
            for (since, earlier), to, later in zip(before, laps, seconds, strict=False)
            if to > since
        ]

    def _halve(self) -> None:
        """Let every two rows stand for four."""
        self.laps, self.seconds = _ends(self.laps), _ends(self.seconds)
        for name, column in self.columns.items():
            halved = array("d")
            for start in range(0, len(column), 4):
                four = column[start : start + 4]
                halved.extend(_extremes([value for value in four if value == value], min(len(four), 2)))
            self.columns[name] = halved


def _by_name(samples: Sequence[Mapping[str, float]]) -> dict[str, Sequence[float]]:
    """The values of each signal in *samples*."""
    names = list(samples[0])
    if len(names) > 1 and set(map(len, samples)) == {len(names)}:
        try:  # nearly always all are of the same signals, and this is how a million of them are quick
            return dict(zip(names, zip(*map(itemgetter(*names), samples), strict=True), strict=True))
        except KeyError:
            pass
    names = list(dict.fromkeys(name for sample in samples for name in sample))
    return {name: [sample[name] for sample in samples if name in sample] for name in names}


def _ends(positions: array[float]) -> array[float]:
    """The first and the last of every four."""
    kept = array("d")
    for start in range(0, len(positions), 4):
        four = positions[start : start + 4]
        kept.extend(four if len(four) <= 2 else (four[0], four[-1]))
    return kept


def _extremes(values: Sequence[float], wanted: int) -> tuple[float, ...]:
    """The lowest and the highest of *values* in the order in which they came, or as many of them as are *wanted*."""
    if not values:
        return (_NOTHING,) * wanted
    if wanted == 1:
        return (values[-1],)
    low, high = min(values), max(values)
    return (low, high) if low == high or values.index(low) <= values.index(high) else (high, low)

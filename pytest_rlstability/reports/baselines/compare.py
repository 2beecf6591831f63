"""Compares the measures of two runs, without a process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pytest_rlstability.leaks.signals.registry import SignalFacts
from pytest_rlstability.model.units import format_duration, format_size
from pytest_rlstability.reports.baselines.measures import Measure, TestMeasures

SURE = 2.0
"""Combined standard deviations of single laps (or runs) that a change of their median must exceed."""
SURE_GROWTH = 5.0
"""Standard errors that a change of growth must exceed: with the many signals of a run, fewer happen by chance."""
SURE_RATE = 0.01
"""How unlikely a difference in passes must be by chance alone (Fisher's exact test)."""
LEAST_MEMORY = 8.0 * 2**20
"""Bytes by which peak memory differs from run to run because of allocators and lazy imports."""
LEAST_SECONDS = 50e-6
CALM = 0.75
"""Load for each processor up to which laps do not wait for one."""
LEAST_GROWTH = {"bytes": 64.0, "count": 0.1}


@dataclass(frozen=True)
class Change:
    """One measure of one test before and after, as text. *excess* is the change as a multiple of what is tolerated:
    positive is worse, negative better, and 0 no change."""

    test: str
    measure: str
    excess: float
    before: str
    after: str

    def line(self) -> str:
        """``test_env.py::test_step: lap time 10 ms -> 15 ms``"""
        return f"{self.test}: {self.measure} {self.before} -> {self.after}"


@dataclass(frozen=True)
class Comparison:
    """The differences between two runs, the largest first."""

    worse: tuple[Change, ...]
    better: tuple[Change, ...]
    compared: int
    new: tuple[str, ...]


def compare(
    before: Mapping[str, TestMeasures],
    after: Mapping[str, TestMeasures],
    tolerance: float,
    signals: Mapping[str, SignalFacts],
) -> Comparison:
    """Every test that both have, measure by measure. *tolerance* is a share: 0.2 is 20 %."""
    common = [name for name in after if name in before]
    changes = [change for name in common for change in _changes(name, before[name], after[name], tolerance, signals)]
    changes.sort(key=lambda change: (-abs(change.excess), change.test, change.measure))
    return Comparison(
        worse=tuple(change for change in changes if change.excess > 0),
        better=tuple(change for change in changes if change.excess < 0),
        compared=len(common),
        new=tuple(sorted(name for name in after if name not in before)),
    )


def excess(before: Measure | None, after: Measure | None, tolerance: float, least: float, sure: float = SURE) -> float:
    """The change as a multiple of what is tolerated: positive is more, 0 is no change, or a measure that is missing.

    A change counts when it exceeds the tolerance, the spread within both runs, and *least*.

    >>> excess(Measure(100), Measure(150), tolerance=0.2, least=1)
    2.5
    >>> excess(Measure(100, spread=30), Measure(150), tolerance=0.2, least=1)
    0.0
    """
    if before is None or after is None:
        return 0.0
    tolerated = max(tolerance * abs(before.value), sure * math.hypot(before.spread, after.spread), least)
    change = after.value - before.value
    return change / tolerated if abs(change) > tolerated else 0.0


def rate_excess(before: TestMeasures, after: TestMeasures, tolerance: float) -> float:
    """Like ``excess``, for pass rates; negative is worse. Between two single runs the outcome itself is the change."""
    earlier, later = before.passes / before.runs, after.passes / after.runs
    change = later - earlier
    if before.runs == after.runs == 1:
        return change
    if abs(change) <= tolerance * earlier or _by_chance(before, after) > SURE_RATE:
        return 0.0
    return change / max(tolerance * earlier, 1 / after.runs)


def lap_excess(before: TestMeasures, after: TestMeasures, tolerance: float) -> float:
    """Like ``excess``, for lap times. On a loaded machine laps wait for a processor: there a change counts only if the
    processor time of the laps changed too."""
    size = excess(before.lap_seconds, after.lap_seconds, tolerance, LEAST_SECONDS)
    if max(before.load, after.load) <= CALM:
        return size
    processor = excess(before.lap_cpu_seconds, after.lap_cpu_seconds, tolerance, LEAST_SECONDS)
    return size if size * processor > 0 else 0.0


def _by_chance(before: TestMeasures, after: TestMeasures) -> float:
    """The probability of such a difference, or a larger one in its direction, if both runs have the same pass rate."""
    passes, total = before.passes + after.passes, before.runs + after.runs
    fewest, most = max(0, passes - before.runs), min(passes, after.runs)
    fewer = after.passes / after.runs < before.passes / before.runs
    counted = range(fewest, after.passes + 1) if fewer else range(after.passes, most + 1)
    ways = sum(math.comb(after.runs, count) * math.comb(before.runs, passes - count) for count in counted)
    return ways / math.comb(total, passes)


def _changes(
    name: str, before: TestMeasures, after: TestMeasures, tolerance: float, signals: Mapping[str, SignalFacts]
) -> Iterator[Change]:
    yield Change(name, "pass rate", -rate_excess(before, after, tolerance), _rate(before), _rate(after))
    peaks = before.peak_memory, after.peak_memory
    yield Change(name, "peak memory", excess(*peaks, tolerance, LEAST_MEMORY), *_shown(peaks, format_size))
    laps = before.lap_seconds, after.lap_seconds
    yield Change(name, "lap time", lap_excess(before, after, tolerance), *_shown(laps, format_duration))
    for signal in sorted(before.growth.keys() & after.growth.keys()):
        growths = before.growth[signal], after.growth[signal]
        unit = signals[signal].unit if signal in signals else "count"
        # What shrinks, faster or more slowly than before, is neither worse nor better.
        if max(growth.value for growth in growths) > 0:
            size = excess(*growths, tolerance, LEAST_GROWTH[unit], SURE_GROWTH)
            form = format_size if unit == "bytes" else "{:.3g}".format
            yield Change(name, f"growth of {signal} per lap", size, *_shown(growths, form))


def _shown(measures: tuple[Measure | None, Measure | None], form: Callable[[float], str]) -> tuple[str, str]:
    before, after = ("" if measure is None else form(measure.value) for measure in measures)
    return before, after


def _rate(test: TestMeasures) -> str:
    return f"{test.passes / test.runs:.0%} ({test.passes}/{test.runs})"

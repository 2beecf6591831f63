"""Measures a test by the events of its run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median

from pytest_rlstability.leaks.signals.registry import SignalFacts, signal_facts
from pytest_rlstability.model.events import Event, Finished, Judged, Outcome, Sample, Session, Started
from pytest_rlstability.model.growth import Growth, spread
from pytest_rlstability.model.verdict import Word
from pytest_rlstability.reports.run_state import History
from pytest_rlstability.verdicts.leak import WITHIN_LIMIT, LeakState

FEWEST_LAP_TIMES = 5
FEWEST_SECONDS = 1.0
"""Time that the laps must take in total. In less, a machine that is busy for a moment slows all of them."""
_CUT_SHORT = frozenset({Word.CRASH, Word.STALL})
"""Verdicts of tests that did not run to their end: what they measured until then cannot be compared."""
_OF_RUNS = ("run_passed", "run_seconds", "peak_memory")
"""The samples of each run of a repeated test."""


@dataclass(frozen=True)
class Measure:
    """A number and the spread it has within its own run, as a standard deviation."""

    value: float
    spread: float = 0.0


@dataclass(frozen=True)
class TestMeasures:
    """The measures of one test; ``None`` or absent: not measured."""

    __test__ = False

    runs: int
    passes: int
    peak_memory: Measure | None = None
    lap_seconds: Measure | None = None
    growth: Mapping[str, Measure] = field(default_factory=dict)
    """Per lap, by signal; 0 for a signal that did not grow."""
    lap_cpu_seconds: Measure | None = None
    load: float = 0.0
    """The load average for each processor when the test ended: above 1 laps wait for their turn."""


def load_per_processor() -> float:
    """The load average of the last minute for each processor; 0 where it cannot be read."""
    if sys.platform != "win32":
        with suppress(OSError):
            return os.getloadavg()[0] / (os.cpu_count() or 1)
    return 0.0


class Gatherer:
    """Handles the events of a run; ``tests`` are the measures of the tests that passed or failed, by node id."""

    def __init__(self, load: Callable[[], float] = load_per_processor) -> None:
        self.tests: dict[str, TestMeasures] = {}
        self.signals = signal_facts({})
        self._load = load
        self._open: dict[str, _OpenTest] = {}

    def handle(self, event: Event) -> None:
        match event:
            case Session():
                self.signals = signal_facts(event.signals)
            case Started():
                self._open.setdefault(event.test, _OpenTest(self.signals)).begin()
            case Sample():
                self._open.setdefault(event.test, _OpenTest(self.signals)).sample(event)
            case Finished():
                test = self._open.pop(event.test, None) or _OpenTest(self.signals)
                if event.outcome in (Outcome.PASSED, Outcome.FAILED):
                    self.tests[event.test] = replace(test.finish(event), load=self._load())


class _OpenTest:
    """A test that has not ended. A repeated test begins more than once, and keeps the measures of its runs."""

    def __init__(self, signals: Mapping[str, SignalFacts]) -> None:
        self._signals = signals
        self._history = History()
        self._judged: dict[str, Judged] | None = None
        self._runs: dict[str, list[float]] = {name: [] for name in _OF_RUNS}

    def begin(self) -> None:
        self._history = History()

    def sample(self, event: Sample) -> None:
        if event.judged is not None:
            self._judged = {entry.signal: entry for entry in event.judged if entry.per == "lap"}
        if "run_passed" not in event.values:
            self._history.handle(event)
            return
        for name, numbers in self._runs.items():
            numbers.append(float(event.values.get(name, 0.0)))

    def finish(self, event: Finished) -> TestMeasures:
        facts = event.verdict.facts if event.verdict else {}
        outcomes = self._runs["run_passed"] or [float(not event.failed)]
        runs = int(facts.get("runs", len(outcomes)))
        passes = int(facts.get("passes", sum(outcomes)))
        if event.failed and (event.verdict is None or event.verdict.word in _CUT_SHORT):
            return TestMeasures(runs, passes)
        peaks = self._runs["peak_memory"] or [float(event.peak_memory)]
        return TestMeasures(
            runs,
            passes,
            Measure(median(peaks), spread(peaks)) if max(peaks) else None,
            self._timed(self._runs["run_seconds"] or self._history.lap_seconds()),
            {name: growth for name in self._history.names if (growth := self._growth(name)) is not None},
            self._timed(self._history.lap_cpu_seconds()),
        )

    def _timed(self, times: list[float]) -> Measure | None:
        together = sum(self._runs["run_seconds"]) or self._history.seconds
        if len(times) < FEWEST_LAP_TIMES or together < FEWEST_SECONDS:
            return None
        return Measure(median(times), spread(times))

    def _growth(self, name: str) -> Measure | None:
        signal = self._signals.get(name)
        if signal is not None and not signal.compared:
            return None
        growth = self._history.growth(name)
        if growth is None:
            return None
        if self._judged is None or signal is None:
            grows = abs(growth.per_lap) >= _negligible(signal, growth)
            return Measure(growth.per_lap if grows else 0.0, growth.error)
        # The leak check knows more than a fitted line: what it calls clean or bounded does not grow, and the growth of
        # what it could not decide is unknown.
        entry = self._judged.get(name, Judged(name, LeakState.CLEAN))
        grows = entry.state in (LeakState.LEAK, LeakState.NOT_JUDGED) or entry.reason == WITHIN_LIMIT
        return None if entry.state == LeakState.UNDECIDED else Measure(entry.slope if grows else 0.0, growth.error)


def _negligible(signal: SignalFacts | None, growth: Growth) -> float:
    """The growth per lap up to which a signal counts as constant, as for the leak judge."""
    if signal is not None:
        return max(signal.resolution, signal.smallest / max(growth.laps, 1.0))
    return 2 / max(growth.laps, 1.0)

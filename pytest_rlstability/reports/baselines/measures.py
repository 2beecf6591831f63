"""What is measured of a test, from the events of its run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from pytest_rlstability.reports.history import Growth, History, spread
from pytest_rlstability.signals.registry import SIGNALS, signal_class
from pytest_rlstability.verdicts.leak import WITHIN_LIMIT

FEWEST_LAP_TIMES = 5
FEWEST_SECONDS = 1.0
"""Time that laps must have taken together: a machine that is busy elsewhere for a moment slows all of fewer."""
_WHOLE = ("", "LEAK", "FLAKY")
"""Verdicts of tests that did all their work: what a crash or a stall broke off says nothing of memory or time."""
_OF_RUNS = ("run_passed", "run_seconds", "peak_memory")
"""What the runs of a repeated test are sampled by."""


@dataclass(frozen=True)
class Measure:
    """A number and the spread it has within its own run, as a standard deviation."""

    value: float
    spread: float = 0.0


@dataclass(frozen=True)
class TestMeasures:
    """Everything measured of one test; ``None`` and absent: not measured."""

    __test__ = False

    runs: int
    passes: int
    peak_memory: Measure | None = None
    lap_seconds: Measure | None = None
    growth: Mapping[str, Measure] = field(default_factory=dict)
    """Per lap, by signal; a signal that stood still is there with 0."""
    lap_cpu_seconds: Measure | None = None
    load: float = 0.0
    """Processes that wanted to run, for each processor, when the test ended: above 1 laps wait for their turn."""


def load_per_processor() -> float:
    """The load average of the last minute for each processor; 0 where the system does not say."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except (AttributeError, OSError):
        return 0.0


class Gatherer:
    """Hears the events of a run; ``tests`` are the measures of the tests that are over and were not skipped.

    ``gatherer = Gatherer()``, ``gatherer.hear(event)`` for each, then ``gatherer.tests["test_env.py::test_step"]``.
    """

    def __init__(self, load: Callable[[], float] = load_per_processor) -> None:
        self.tests: dict[str, TestMeasures] = {}
        self._load = load
        self._open: dict[str, _OpenTest] = {}

    def hear(self, event: Mapping[str, Any]) -> None:
        name, kind = event["test"], event["event"]
        if kind == "started":
            self._open.setdefault(name, _OpenTest()).begin()
        elif kind == "sample":
            self._open.setdefault(name, _OpenTest()).sample(event)
        elif kind == "finished":
            test = self._open.pop(name, None) or _OpenTest()
            if event["outcome"] != "skipped":
                self.tests[name] = replace(test.finish(event), load=self._load())


class _OpenTest:
    """A test that is not over. One that is repeated begins more than once, and keeps what its runs have told."""

    def __init__(self) -> None:
        self._history = History()
        self._judged: dict[str, Mapping[str, Any]] | None = None
        self._runs: dict[str, list[float]] = {name: [] for name in _OF_RUNS}

    def begin(self) -> None:
        self._history = History()

    def sample(self, event: Mapping[str, Any]) -> None:
        values = event["values"]
        if "judged" in event:
            self._judged = {entry["signal"]: entry for entry in event["judged"] if entry["per"] == "lap"}
        if "run_passed" not in values:
            self._history.hear(event)
            return
        for name, numbers in self._runs.items():
            numbers.append(float(values.get(name, 0.0)))

    def finish(self, event: Mapping[str, Any]) -> TestMeasures:
        passed = event["outcome"] == "passed"
        verdict = event.get("verdict") or {}
        facts = verdict.get("facts", {})
        outcomes = self._runs["run_passed"] or [float(passed)]
        runs = int(facts.get("runs", len(outcomes)))
        passes = int(facts.get("passes", sum(outcomes)))
        if not passed and verdict.get("word", "?") not in _WHOLE:
            return TestMeasures(runs, passes)
        peaks = self._runs["peak_memory"] or [float(event.get("peak_memory") or 0.0)]
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
        if name in SIGNALS and (signal_class(name).foreign or not signal_class(name).judged):
            return None
        growth = self._history.growth(name)
        if growth is None:
            return None
        if self._judged is not None and name in SIGNALS:
            return self._judged_growth(name, growth)
        if abs(growth.per_lap) < _negligible(name, growth):
            return Measure(0.0, growth.error)
        return Measure(growth.per_lap, growth.error)

    def _judged_growth(self, name: str, growth: Growth) -> Measure | None:
        """The leak check has looked closer: what it calls clean or bounded does not grow, whatever a line fitted
        through the samples says, and what it could not decide is not known."""
        assert self._judged is not None
        entry = self._judged.get(name, {"state": "clean", "reason": "", "slope": 0.0})
        if entry["state"] == "undecided":
            return None
        grows = entry["state"] == "leak" or entry["reason"] == WITHIN_LIMIT
        return Measure(float(entry["slope"]) if grows else 0.0, growth.error)


def _negligible(name: str, growth: Growth) -> float:
    """The growth per lap that is none: what the leak judge would not look at either."""
    if name in SIGNALS:
        signal = signal_class(name)
        return max(signal.resolution, signal.smallest / max(growth.laps, 1.0))
    return 2 / max(growth.laps, 1.0)

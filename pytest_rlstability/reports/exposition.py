"""A run's state as metrics that Prometheus reads: OpenMetrics names, base units, a bounded number of series."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

import pytest

from pytest_rlstability.box2d.census import PREFIX as BOX2D
from pytest_rlstability.box2d.census import TOTALS
from pytest_rlstability.box2d.registry import BODY_TYPES
from pytest_rlstability.events import Word
from pytest_rlstability.reports.run_state import RunState, TestState
from pytest_rlstability.signals.registry import SIGNALS, signal_class

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_LONGEST_LABEL = 400
_OF_TRIALS = {
    "run_passed": ("rlstability_trial_passed", "", "Whether the newest run of a repeated test passed."),
    "run_seconds": ("rlstability_trial", "seconds", "How long the newest run of a repeated test took."),
    "peak_memory": ("rlstability_trial_memory_peak", "bytes", "Peak memory of the newest run of a repeated test."),
}
"""What rl_flaky samples: there the runs of the test are its laps."""
_PLAIN_FAILURE = "FAILED"


def require_library(flag: str) -> None:
    """A usage error with the line to type where prometheus-client is missing."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        text = f"{flag} needs prometheus-client: pip install 'pytest-rlstability[report]'"
        raise pytest.UsageError(text) from None


class Collector:
    """What prometheus_client asks for metrics: ``CollectorRegistry().register(Collector(state))``."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        with self._state.reading() as tests:
            found = [*_of_the_run(self._state, tests), *_of_the_tests(tests)]
        yield from found

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: otherwise registering would collect."""
        return []


def registry_of(state: RunState) -> Any:
    """A registry with this run's metrics and nothing else."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(Collector(state))
    return registry


def _of_the_run(state: RunState, tests: list[TestState]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    session = state.session
    information = {
        name: label(str(session[name])) for name in ("host", "platform", "versions", "seed") if name in session
    }
    yield InfoMetricFamily("rlstability_run", "The run and where it happens.", value=information)
    if "time" in session:
        yield GaugeMetricFamily("rlstability_run_start_time_seconds", "When the run began.", value=session["time"])
    yield GaugeMetricFamily("rlstability_run_active", "1 while the run lasts, 0 when it is over.", value=state.active)
    running = sum(test.running for test in tests)
    yield GaugeMetricFamily("rlstability_tests_running", "Tests that run now.", value=running)
    outcomes = CounterMetricFamily("rlstability_tests", "Tests that are over, by outcome.", labels=["outcome"])
    for outcome in sorted({"passed", "failed", "skipped", *state.outcomes}):
        outcomes.add_metric([outcome], state.outcomes[outcome])
    yield outcomes
    verdicts = CounterMetricFamily("rlstability_verdicts", "Tests that failed with a verdict.", labels=["word"])
    for word in get_args(Word):
        verdicts.add_metric([word], state.verdicts[word])
    yield verdicts
    text = "Tests that are over and no longer told one by one, so that the number of series stays bounded."
    yield CounterMetricFamily("rlstability_tests_dropped", text, value=state.dropped)


def _of_the_tests(tests: list[TestState]) -> Iterator[Metric]:
    """The families that speak of single tests, each with all its samples; those without any are left out."""
    families = _Families()
    for test in tests:
        _tell_test(families, test)
        for name, value in test.values.items():
            _tell_value(families, test, name, value)
    yield from families.values()


class _Families:
    """Metric families by name, made when their first sample comes."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}

    def add(self, name: str, text: str, labels: Mapping[str, str], value: float, *, counter: bool = False) -> None:
        if not math.isfinite(value):
            return
        if name not in self._families:
            self._families[name] = self._make(name, text, list(labels), counter)
        self._families[name].add_metric([label(text) for text in labels.values()], value)

    def _make(self, name: str, text: str, labels: list[str], counter: bool) -> Any:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        if counter:
            return CounterMetricFamily(name, text, labels=labels)
        unit = next((unit for unit in ("bytes", "seconds") if name.endswith(f"_{unit}")), "")
        return GaugeMetricFamily(name, text, labels=labels, unit=unit)

    def values(self) -> Iterable[Any]:
        return self._families.values()


def _tell_test(families: _Families, test: TestState) -> None:
    labels = {"test": test.name}
    if test.running:
        families.add("rlstability_test_running", "1 for each test that runs now.", labels, 1)
    if test.failed:
        word = test.verdict or _PLAIN_FAILURE
        families.add("rlstability_test_failed", "1 for each test that failed.", {**labels, "word": word}, 1)
    if test.seconds is not None:
        families.add("rlstability_test_duration_seconds", "How long the test took.", labels, test.seconds)
    if test.laps:
        families.add("rlstability_laps", "Laps that the test has begun.", labels, test.laps, counter=True)
    if test.peak_memory:
        text = "Highest resident memory of the test's process."
        families.add("rlstability_memory_peak_bytes", text, labels, test.peak_memory)
    if lap_times := test.history.lap_seconds():
        text = "Seconds per lap, from the last sample but one to the last."
        families.add("rlstability_lap_seconds", text, labels, lap_times[-1])


def _tell_value(families: _Families, test: TestState, signal: str, value: float) -> None:
    """One value of the newest sample, and how it grows."""
    stem, unit, text, labels = _family_of(signal)
    labels = {"test": test.name, **labels}
    suffix = f"_{unit}" if unit else ""
    families.add(f"{stem}{suffix}", text, labels, value)
    growth = None if signal in _OF_TRIALS else test.history.growth(signal)
    if growth is not None:
        for per, amount in (("lap", growth.per_lap), ("minute", growth.per_minute)):
            if amount is not None:
                name = f"{stem}_growth{suffix}_per_{per}"
                families.add(name, f"{text} Growth per {per}, the warm-up left out.", labels, amount)


def _family_of(signal: str) -> tuple[str, str, str, dict[str, str]]:
    """Name without unit, unit, help and labels of the metric that a sample's value belongs to."""
    if signal in SIGNALS:
        if signal_class(signal).unit == "bytes":
            return "rlstability_memory", "bytes", "Memory of the test's process, by signal.", {"signal": signal}
        return "rlstability_resources", "", "Things that the test's process holds, by signal.", {"signal": signal}
    if signal.startswith(BOX2D):
        return _box2d_family(signal.removeprefix(BOX2D))
    if signal in _OF_TRIALS:
        return *_OF_TRIALS[signal], {}
    return "rlstability_probe", "", "A counter of the test's own, by name.", {"name": signal}


def _box2d_family(count: str) -> tuple[str, str, str, dict[str, str]]:
    if count == "worlds" or (count in TOTALS and count != "bodies"):
        return f"rlstability_box2d_{count}", "", f"Box2D {count}.", {}
    by = "all" if count == "bodies" else "type" if count in BODY_TYPES else "class"
    text = "Box2D bodies: all, by Box2D's type, and by the test's own classes."
    return "rlstability_box2d_bodies", "", text, {"by": by, "type": "all" if by == "all" else count}


def label(text: str) -> str:
    """*text* as a label's value: encodable, and not longer than anybody wants to store a million times."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= _LONGEST_LABEL:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{text[: _LONGEST_LABEL - 14]}..{digest}"

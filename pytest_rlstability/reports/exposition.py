"""A run's state as Prometheus metrics: OpenMetrics names, base units, a bounded number of series."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_rlstability.leaks.signals.registry import SignalFacts, signal_facts
from pytest_rlstability.model.events import Outcome
from pytest_rlstability.model.verdict import PLAIN_FAILURE, Word
from pytest_rlstability.reports.run_state import RunState, TestState

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_LONGEST_LABEL = 400
_LAPS = "rlstability_laps"
_Row = tuple[str, str, Mapping[str, str], float]
"""A metric's name, its help, its labels besides ``test``, and a value."""


@dataclass(frozen=True)
class Family:
    """A metric without its values: its name, a sentence of help, labels besides ``test``, and the base unit if any.

    ``Family("rlstability_joints", "Joints in all worlds.")``; the unit is added to the name.
    """

    name: str
    text: str
    labels: Mapping[str, str] = field(default_factory=dict)
    unit: Literal["", "bytes", "seconds"] = ""


FindFamily = Callable[[str], Family | None]
"""The family of a value that a kit samples; None for a name that no kit knows."""

_OF_TRIALS = {
    "run_passed": Family("rlstability_trial_passed", "Whether the newest run of a repeated test passed."),
    "run_seconds": Family("rlstability_trial", "How long the newest run of a repeated test took.", unit="seconds"),
    "peak_memory": Family(
        "rlstability_trial_memory_peak", "Peak memory of the newest run of a repeated test.", unit="bytes"
    ),
}
"""The samples of rl_flaky, whose laps are the runs of the test."""


def require_library(flag: str) -> None:
    """Raise a usage error with the line to type if prometheus-client is missing."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        text = f"{flag} needs prometheus-client: pip install 'pytest-rlstability[report]'"
        raise pytest.UsageError(text) from None


@dataclass(frozen=True, eq=False)
class _Collector:
    """What prometheus_client asks for metrics."""

    state: RunState
    find_family: FindFamily

    def collect(self) -> list[Metric]:
        with self.state.reading() as tests:
            return [*_of_the_run(self.state, tests), *_of_the_tests(self.state, tests, self.find_family)]


def kit_families(config: pytest.Config) -> FindFamily:
    """Finds the families that the plugins of this run know."""
    return lambda name: config.hook.pytest_rlstability_metric(name=name)


def registry_of(state: RunState, find_family: FindFamily = lambda name: None) -> Any:
    """A registry with this run's metrics and nothing else."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(_Collector(state, find_family))
    return registry


def _of_the_run(state: RunState, tests: list[TestState]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    information = {}
    if session := state.session:
        information = {name: label(str(getattr(session, name))) for name in ("host", "platform", "versions", "seed")}
    yield InfoMetricFamily("rlstability_run", "The run and where it happens.", value=information)
    if session:
        yield GaugeMetricFamily("rlstability_run_start_time_seconds", "When the run began.", value=session.time)
    yield GaugeMetricFamily("rlstability_run_active", "1 while the run lasts, 0 when it is over.", value=state.active)
    running = sum(test.running for test in tests)
    yield GaugeMetricFamily("rlstability_tests_running", "Tests that run now.", value=running)
    outcomes = CounterMetricFamily("rlstability_tests", "Tests that are over, by outcome.", labels=["outcome"])
    for outcome in sorted({Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED, *state.outcomes}):
        outcomes.add_metric([outcome], state.outcomes[outcome])
    yield outcomes
    verdicts = CounterMetricFamily("rlstability_verdicts", "Tests that failed with a verdict.", labels=["word"])
    for word in Word:
        verdicts.add_metric([word], state.verdicts[word])
    yield verdicts
    text = "Tests that are over and no longer reported one by one, so that the number of series stays bounded."
    yield CounterMetricFamily("rlstability_tests_dropped", text, value=state.dropped)


def _of_the_tests(state: RunState, tests: list[TestState], find_family: FindFamily) -> Iterable[Metric]:
    """The metrics with a ``test`` label that have values."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    metrics: dict[str, Any] = {}
    signals = signal_facts(state.session.signals if state.session else {})
    for test in tests:
        rows = [*_test_rows(test)]
        for name, value in test.values.items():
            rows += _value_rows(test, name, value, _family_of(name, signals.get(name), find_family))
        for name, text, others, value in rows:
            labels = {"test": test.name, **others}
            if math.isfinite(value):
                if name not in metrics:
                    kind = CounterMetricFamily if name == _LAPS else GaugeMetricFamily
                    unit = next((unit for unit in ("bytes", "seconds") if name.endswith(f"_{unit}")), "")
                    metrics[name] = kind(name, text, labels=list(labels), unit=unit)
                metrics[name].add_metric(list(map(label, labels.values())), value)
    return metrics.values()


def _test_rows(test: TestState) -> Iterator[_Row]:
    if test.running:
        yield "rlstability_test_running", "1 for each test that runs now.", {}, 1
    if test.failed:
        yield "rlstability_test_failed", "1 for each test that failed.", {"word": test.word or PLAIN_FAILURE}, 1
    if test.seconds is not None:
        yield "rlstability_test_duration_seconds", "How long the test took.", {}, test.seconds
    if test.laps:
        yield _LAPS, "Laps that the test has begun.", {}, test.laps
    if test.peak_memory:
        yield "rlstability_memory_peak_bytes", "Highest resident memory of the test's process.", {}, test.peak_memory
    if lap_times := test.history.lap_seconds():
        text = "Seconds per lap, from the last sample but one to the last."
        yield "rlstability_lap_seconds", text, {}, lap_times[-1]


def _value_rows(test: TestState, signal: str, value: float, family: Family) -> Iterator[_Row]:
    """One value of the newest sample, and how it grows."""
    suffix = f"_{family.unit}" if family.unit else ""
    yield f"{family.name}{suffix}", family.text, family.labels, value
    growth = None if signal in _OF_TRIALS else test.history.growth(signal)
    if growth is not None:
        for per, amount in (("lap", growth.per_lap), ("minute", growth.per_minute)):
            if amount is not None:
                text = f"{family.text} Growth per {per}, the warm-up left out."
                yield f"{family.name}_growth{suffix}_per_{per}", text, family.labels, amount


def _family_of(name: str, signal: SignalFacts | None, find_family: FindFamily) -> Family:
    """The family that a sample's value *name* belongs to."""
    if signal is not None and signal.unit == "bytes":
        return Family("rlstability_memory", "Memory of the test's process, by signal.", {"signal": name}, "bytes")
    if signal is not None:
        return Family("rlstability_resources", "Things that the test's process holds, by signal.", {"signal": name})
    probe = Family("rlstability_probe", "A counter of the test's own, by name.", {"name": name})
    return _OF_TRIALS.get(name) or find_family(name) or probe


def label(text: str) -> str:
    """*text* as a label's value: encodable, and of bounded length."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= _LONGEST_LABEL:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{text[: _LONGEST_LABEL - 14]}..{digest}"

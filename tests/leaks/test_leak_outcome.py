"""Growth without a known holder is looked at again before it is called a leak."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlstability.leaks.attribution import Finding
from pytest_rlstability.leaks.check import LeakCheck
from pytest_rlstability.leaks.outcome import _downgrade_stopped, run
from pytest_rlstability.leaks.report import suppression, verdict
from pytest_rlstability.leaks.settings import LeakSettings
from pytest_rlstability.leaks.signals.registry import Signals, shipped_signals
from pytest_rlstability.leaks.watched import Watched
from pytest_rlstability.verdicts.leak import Judgement, Rule

LAPS = 4000


def states_after(
    course: Callable[[int], float],
    *,
    state: str = "leak",
    seconds_left: float = 100.0,
    name: str = "malloc",
    measured: int = LAPS,
) -> list[str]:
    """The outcome for a signal that was a leak after so many laps and then goes on as *course* says."""
    signal: Any = SimpleNamespace(name=name)
    entry = Watched(signal, Rule(), judgement=Judgement(state, True, per_lap=64.0))
    laps = [LAPS]
    check: Any = SimpleNamespace(
        measured_laps=measured,
        seconds_left=seconds_left,
        seconds_per_lap=0.001,
        leaks=lambda: [entry] if state == "leak" else [],
        undecided=lambda: [entry] if state == "undecided" else [],
        read=lambda watched: [course(laps[0]) for _ in watched],
    )
    for count in _downgrade_stopped(check):
        laps[0] += count
    return [entry.judgement.state]


def test_what_stopped_meanwhile_is_bounded() -> None:
    assert states_after(lambda lap: 64.0 * LAPS) == ["bounded"]


def test_what_was_undecided_and_stopped_is_bounded_unless_noise_may_hide_it() -> None:
    assert states_after(lambda lap: 64.0 * LAPS, state="undecided") == ["bounded"]
    assert states_after(lambda lap: 64.0 * lap, state="undecided") == ["undecided"]
    assert states_after(lambda lap: 5e4 * (lap // 125 % 3), state="undecided") == ["undecided"]


def test_what_goes_on_is_a_leak() -> None:
    assert states_after(lambda lap: 64.0 * lap) == ["leak"]


def test_what_goes_on_under_spikes_is_a_leak() -> None:
    assert states_after(lambda lap: 64.0 * lap + (1e6 if lap % 3 == 0 else 0)) == ["leak"]


@pytest.mark.parametrize("seconds_left", [0.1, -3.0])
def test_without_time_the_verdict_stands(seconds_left: float) -> None:
    assert states_after(lambda lap: 0.0, seconds_left=seconds_left) == ["leak"]


@pytest.mark.parametrize(
    ("name", "measured", "state"),
    [
        ("malloc", 80, "undecided"),
        ("malloc", 400, "leak"),
        ("mappings", 80, "undecided"),
        ("python", 20, "undecided"),
        ("python", 80, "leak"),
    ],
)
def test_growth_over_few_laps_is_given_the_benefit_of_the_doubt(name: str, measured: int, state: str) -> None:
    assert states_after(lambda lap: 64.0 * lap, seconds_left=0.0, name=name, measured=measured) == [state]


def slow_laps(lap: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> LeakCheck:
    """A whole check of laps that take most of a second each, on a clock that only they move."""
    now = [0.0]
    monkeypatch.setattr("pytest_rlstability.leaks.survivors.time", SimpleNamespace(perf_counter=lambda: now[0]))
    check = LeakCheck(LeakSettings(checking=True, signals=("python",)), clock=lambda: now[0])
    try:
        for count in run(check):
            for _ in range(count):
                lap()
                now[0] += 0.7
    finally:
        check.close()
    return check


@pytest.mark.parametrize(
    ("length", "word"), [(1000, None), (40, None), (None, "LEAK")], ids=["half empty", "full at the end", "endless"]
)
def test_a_container_with_a_limit_is_bounded_also_where_there_is_no_time_to_trace(
    length: int | None, word: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: deque[object] = deque(maxlen=length)
    check = slow_laps(lambda: events.append([[], []]), monkeypatch)
    assert (check.verdict.word if check.verdict else None) == word
    assert 30 < len(events) <= 60


@pytest.mark.parametrize("name", ["python", "fds"])
def test_the_marker_that_is_suggested_leaves_the_signal_out(name: str) -> None:
    shipped = Signals(shipped_signals())
    signal: Any = next(signal for signal in shipped if signal.name == name)
    marker = suppression(Watched(signal, Rule()), Finding(), shipped.group("resources"))
    asked = shipped.expand(ast.literal_eval(marker.partition("signals=")[2].removesuffix(")")))
    assert name not in asked
    assert "threads" in asked


def test_growth_by_the_minute_is_called_so() -> None:
    signal: Any = SimpleNamespace(name="entities", title="probe entities", unit="count", group="")
    entry = Watched(signal, Rule(limit=100.0), judgement=Judgement("leak", True, per_lap=800.0), by_minute=True)
    check: Any = SimpleNamespace(leaks=lambda: [entry], watched=[entry], settings=LeakSettings())
    check.__dict__.update(laps=9, measured_laps=8, measured_from=1, known_leaks=[], missing={}, sections=list)
    entry.series.add(0.0, 1.0)
    entry.series.add(1.0, 801.0)
    leak = verdict(check, Finding())
    assert leak.headline == "probe entities grow by 800 per minute (limit 100)"
    assert "800 a minute" in leak.text()
    assert "rl_probe('entities', ..., per_minute=1e+03)" in leak.text()

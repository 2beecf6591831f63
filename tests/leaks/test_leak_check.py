"""The check's own decisions, with a clock and signals made up for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlstability.leaks import check as checks
from pytest_rlstability.leaks.check import LeakCheck
from pytest_rlstability.leaks.settings import LeakSettings
from pytest_rlstability.leaks.signals.protocol import Signal


class Clock:
    """Time that passes only when a lap or a sample says so, and the samples that were sent meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.samples: list[Mapping[str, Any]] = []

    def __call__(self) -> float:
        return self.now


class Counter(Signal):
    name = "counter"
    title = "counter"

    def __init__(self, clock: Clock, read: Callable[[], float], cost: float = 0.0) -> None:
        self._clock, self._value, self._cost = clock, read, cost
        self.ceiling = 1e9

    def read(self) -> float:
        self._clock.now += self._cost
        return self._value()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run(clock: Clock, signal: Signal, lap: Callable[[], None], **settings: object) -> LeakCheck:
    catalog: Any = SimpleNamespace(open=lambda names: ([signal], {"cuda": "no card"}))
    emit = clock.samples.append
    check = LeakCheck(LeakSettings(checking=True, catalog=catalog, **settings), clock=clock, emit=emit)  # type: ignore[arg-type]
    for count in check.windows():
        for _ in range(count):
            lap()
    check.close()
    return check


@pytest.mark.parametrize("cost", [2e-6, 1e-3, 0.2])
def test_sampling_takes_a_small_part_of_the_time(clock: Clock, cost: float) -> None:
    def lap() -> None:
        clock.now += cost

    check = run(clock, Counter(clock, lambda: 5.0, cost=1e-4), lap)
    assert check.leaks() == []
    assert clock.now - check.lap_seconds <= 0.05 * check.lap_seconds + 0.05


def test_a_check_that_is_over_at_once_sends_its_first_values_and_its_last(clock: Clock) -> None:
    laps: list[object] = []

    def lap() -> None:
        clock.now += 1e-6
        laps.append(None)

    check = run(clock, Counter(clock, lambda: float(len(laps))), lap, warmup=10, laps=200)
    first, last = clock.samples
    assert (first["lap"], first["values"]) == (0, {"counter": 0.0})
    assert (last["lap"], last["values"]) == (check.laps, {"counter": float(check.laps)})
    states = {entry["signal"]: entry["state"] for entry in last["judged"]}
    assert states == {"counter": "leak", "cuda": "not judged"}, "what could not be read is never clean"


@pytest.mark.parametrize("cost", [2e-6, 1e-3, 0.2, 1.0])
def test_the_budget_is_kept_and_the_leak_found(clock: Clock, cost: float) -> None:
    value = [0.0]

    def lap() -> None:
        clock.now += cost
        value[0] += 1

    check = run(clock, Counter(clock, lambda: value[0], cost=1e-4), lap)
    assert [watched.signal.name for watched in check.leaks()] == ["counter"]
    assert check.leaks()[0].judgement.per_lap == pytest.approx(1)
    assert clock.now <= 30


def test_laps_and_warmup_are_what_the_marker_says(clock: Clock) -> None:
    laps = [0]

    def lap() -> None:
        laps[0] += 1
        clock.now += 0.001

    check = run(clock, Counter(clock, lambda: float(laps[0])), lap, warmup=7, laps=100)
    assert (check.measured_from, check.measured_laps, laps[0]) == (7, 100, 107)
    assert check.leaks()


def test_a_leak_is_stopped_near_its_ceiling(clock: Clock) -> None:
    value = [0.0]

    def lap() -> None:
        clock.now += 1e-6
        value[0] += 1

    signal = Counter(clock, lambda: value[0])
    signal.ceiling = 256.0
    check = run(clock, signal, lap)
    assert check.leaks()
    assert value[0] < 1000


def test_a_machine_that_stood_still_does_not_end_the_check(clock: Clock) -> None:
    laps = [0]

    def lap() -> None:
        laps[0] += 1
        clock.now += 40.0 if laps[0] == 5 else 0.001

    check = run(clock, Counter(clock, lambda: float(laps[0])), lap)
    assert [watched.signal.name for watched in check.leaks()] == ["counter"]


def test_what_others_do_is_not_our_leak(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """The counter rises with time, also while the test stands still."""

    def lap() -> None:
        clock.now += 0.001

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(checks.time, "sleep", sleep)
    signal = Counter(clock, lambda: clock.now * 1000)
    signal.foreign = True
    check = run(clock, signal, lap)
    assert check.leaks() == []
    assert check.watched[0].dismissed


def test_what_only_we_do_is_our_leak_though_others_could(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    value = [0.0]

    def lap() -> None:
        clock.now += 0.001
        value[0] += 1

    monkeypatch.setattr(checks.time, "sleep", lambda seconds: None)
    signal = Counter(clock, lambda: value[0])
    signal.foreign = True
    assert run(clock, signal, lap).leaks()

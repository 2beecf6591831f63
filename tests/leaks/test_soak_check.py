"""A soak's own decisions, with a clock and signals made up for it."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlstability.leaks import check as checks
from pytest_rlstability.leaks import soak_check as soaks
from pytest_rlstability.leaks.settings import LeakSettings
from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.leaks.soak_check import LONGEST_INTERVAL, STRETCH, Pace, SoakCheck
from pytest_rlstability.verdicts.leak import Judgement

HOUR = 3600.0
MIB = 2.0**20


class World:
    """Time that passes only when a lap says so, and what grows in it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.laps = 0
        self.samples: list[dict[str, Any]] = []

    def __call__(self) -> float:
        return self.now


class Reading(Signal):
    name = "counter"
    title = "counter"
    exact = True
    ceiling = float("inf")

    def __init__(self, read: Callable[[], float]) -> None:
        self._value = read

    def read(self) -> float:
        return self._value()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(gc, "collect", lambda: 0)  # thousands of samples, none of them about real memory
    monkeypatch.setattr(soaks, "resident_memory", lambda pid: 1e8)
    return World()


def soak(
    world: World,
    lap: Callable[[], None],
    *signals: Signal,
    **settings: Any,
) -> SoakCheck:
    catalog: Any = SimpleNamespace(open=lambda names: (list(signals), {}))
    check = SoakCheck(LeakSettings(checking=True, catalog=catalog, **settings), clock=world, emit=world.samples.append)
    for count in check.windows():
        for _ in range(count):
            world.laps += 1
            lap()
    return check


def lap_of(world: World, seconds: float) -> Callable[[], None]:
    def lap() -> None:
        world.now += seconds

    return lap


@pytest.mark.parametrize("seconds", [0.001, 0.7, 50.0])
def test_it_takes_its_time_and_not_more(world: World, seconds: float) -> None:
    duration = max(10.0, 60 * seconds)
    check = soak(world, lap_of(world, seconds), Reading(lambda: 5.0), duration=duration)
    assert duration <= world.now <= duration + max(seconds, 0.3)
    assert check.leaks() == check.undecided() == []
    assert check.state().verdict == "clean"
    assert check.state().seconds == pytest.approx(world.now)


def test_what_leaks_from_the_start_is_judged_at_the_end(world: World) -> None:
    check = soak(world, lap_of(world, 0.5), Reading(lambda: world.laps / 2), duration=HOUR)
    assert world.now >= HOUR
    assert [entry.signal.name for entry in check.leaks()] == ["counter"]
    state = check.state()
    assert (state.verdict, state.per_lap) == ("LEAK", {"counter": 0.5})
    assert state.so_far() == "LEAK so far: counter +0.5 per lap"


def test_what_fills_up_for_half_an_hour_is_not_a_leak(world: World) -> None:
    """In the thirty seconds of a leak check this would be one."""
    check = soak(world, lap_of(world, 0.5), Reading(lambda: float(min(world.laps, 3600))), duration=HOUR)
    assert check.leaks() == check.undecided() == []
    early = [sample["soak"] for sample in world.samples if HOUR / 10 < sample["seconds"] < HOUR / 4]
    assert {state["verdict"] for state in early} <= {"undecided", "LEAK"}, "it did look like one"


def test_a_leak_that_starves_the_machine_ends_it(world: World) -> None:
    signal = Reading(lambda: float(world.laps))
    signal.ceiling = 2000.0
    check = soak(world, lap_of(world, 0.1), signal, duration=HOUR)
    assert check.ended_early
    assert check.leaks()
    assert 2000 <= world.laps < 4000
    assert check.state().ended_early
    assert check.seconds_left <= 0.05 * HOUR, "who holds it is looked for in a part of a soak's time"


def test_memory_may_be_filled_as_long_as_there_is_room(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr(soaks, "memory_room", lambda limit: 1e9)
    blocks, heap = Reading(lambda: 0.0), Reading(lambda: 0.0)
    blocks.group = heap.group = "memory"
    blocks.name, blocks.ceiling = "python", 3e5
    heap.name, heap.unit, heap.ceiling = "malloc", "bytes", 2.0**29
    check = soak(world, lap_of(world, 1), blocks, heap, duration=60)
    assert {entry.signal.name: entry.rule.ceiling for entry in check.watched} == {"python": float("inf"), "malloc": 5e8}


def test_samples_come_often_at_first_and_then_every_ten_seconds(world: World) -> None:
    taken: list[float] = []

    def read() -> float:
        taken.append(world.now)
        return 1.0

    soak(world, lap_of(world, 0.01), Reading(read), duration=HOUR)
    gaps = [later - earlier for earlier, later in itertools.pairwise(taken)]
    assert sum(moment < 60 for moment in taken) > 60
    assert max(gaps) <= LONGEST_INTERVAL + 0.5


def test_every_is_the_time_from_sample_to_sample(world: World) -> None:
    soak(world, lap_of(world, 0.1), Reading(lambda: 1.0), duration=HOUR, every=30.0)
    moments = [sample["seconds"] for sample in world.samples if sample["warmup"] and "judged" not in sample]
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert len(gaps) > 110
    assert all(29.5 <= gap <= 30.5 for gap in gaps[:-1])


def test_every_leaves_enough_samples_to_judge_by(world: World) -> None:
    check = soak(world, lap_of(world, 0.1), Reading(lambda: float(world.laps)), duration=60, every=50.0)
    assert check.leaks()


def test_laps_that_become_slow_do_not_put_off_the_next_look(world: World) -> None:
    def lap() -> None:
        world.now += 0.005 if world.now < 1000 else 1.5

    soak(world, lap, Reading(lambda: 1.0), duration=1500)
    moments = [sample["seconds"] for sample in world.samples]
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert max(gaps) <= LONGEST_INTERVAL + 300 * STRETCH, "of 2000 laps in ten seconds only a stretch becomes slow"
    assert max(gaps[-20:]) <= LONGEST_INTERVAL + 1.5
    assert world.now <= 1502


def test_slower_laps_and_memory_that_runs_out_are_told(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr(soaks, "memory_room", lambda limit: 360 * MIB)

    def lap() -> None:
        world.now += 0.012 if world.now < HOUR / 2 else 0.019

    monkeypatch.setattr(soaks, "resident_memory", lambda pid: 500 * MIB + world.now / 100 * MIB)
    check = soak(world, lap, Reading(lambda: 1.0), duration=HOUR, memory_limit=2**30)
    state = check.state()
    assert state.hours_to_limit == pytest.approx(10, rel=0.02)
    _, pace, memory = state.lines()
    assert pace == "laps slowed from 12 ms to 19 ms"
    assert memory == "memory 536.0 MiB, 36.0 MiB more per hour: the limit of 1.0 GiB would be used up in about 10 h"
    assert check.leaks() == [], "resident memory and slow laps are information, not a verdict"


def test_what_a_soak_keeps_does_not_grow_with_it(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr(checks, "judge", lambda *samples: Judgement("clean", True))
    monkeypatch.setattr(soaks, "growth_per_second", lambda moments, memory: 0.0)
    monkeypatch.setattr(soaks, "pace", lambda moments, seconds: Pace(1.0, 1.0, drifts=False))
    kept: list[int] = []

    def lap() -> None:
        world.now += 10.0
        if world.laps in (600, 1400):
            world.samples.clear()
            kept.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        check = soak(world, lap, Reading(lambda: 7.0), duration=15000)
    finally:
        tracemalloc.stop()
    assert len(check.memory) > 256
    assert all(len(series) <= 512 for series in (check.memory, check.lap_times, check.watched[0].series))
    assert kept[1] - kept[0] < 2000, "800 samples more"


def test_shared_growth_is_not_a_verdict_before_others_are_ruled_out(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    def sleep(seconds: float) -> None:
        world.now += seconds

    monkeypatch.setattr(checks.time, "sleep", sleep)
    signal = Reading(lambda: world.now)
    signal.foreign = True
    check = soak(world, lap_of(world, 0.1), signal, duration=100)
    assert check.watched[0].dismissed
    assert {sample["soak"]["verdict"] for sample in world.samples} == {"", "clean"}
    assert check.state().verdict == "clean"

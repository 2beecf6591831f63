"""A container with a limit accounts for what it holds, and for nothing beside it."""

from __future__ import annotations

import functools
import gc
import tracemalloc
from collections import Counter, deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlstability.leaks.attribution import _native_rest
from pytest_rlstability.leaks.growers import Bounded, Grower, Kept, bounded_by, is_loud
from pytest_rlstability.leaks.lines import show_line
from pytest_rlstability.leaks.survivors import Window, kept_by_line, kept_in_both
from pytest_rlstability.leaks.watched import Watched
from pytest_rlstability.verdicts.leak import Judgement, LeakState, Rule

LAPS = 200


class Transition:
    def __init__(self, observation: object) -> None:
        self.observation = observation


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start(8)
    yield
    tracemalloc.stop()


def beside(lap: Callable[[int], object], *grown: object) -> tuple[Bounded, list[Kept], list[object]]:
    """What *lap* fills among the containers that have *grown*, and the lines and containers this does not explain."""
    for number in range(LAPS):
        lap(1000 + number)
    first, _ = kept_by_line()
    for number in range(LAPS):
        lap(5000 + number)
    lines = [kept for kept in kept_in_both(first, kept_by_line()[0]) if kept[0][0] == __file__]
    found = [Grower(container, len(container), 2 * LAPS, 2 * LAPS) for container in grown]  # type: ignore[arg-type]
    bounded = bounded_by(found, traced=True)
    rest = [grower.container for grower in bounded.growers_beside(found)]
    return bounded, [kept for kept in lines if not bounded.explains(kept, LAPS) and is_loud(kept, LAPS)], rest


def test_what_a_deque_keeps_is_explained_down_to_its_parts() -> None:
    frames: deque[object] = deque(maxlen=10_000)

    def lap(number: int) -> None:
        observation = [float(number)] * 50
        frames.append(Transition({"observation": observation}))

    bounded, lines, rest = beside(lap, frames)
    assert [grower.container for grower in bounded.containers] == [frames]
    assert (lines, rest) == ([], [])


def test_what_a_cache_keeps_is_explained_though_a_helper_made_it() -> None:
    def make(state: int) -> list[float]:
        return [float(state)] * 30

    @functools.lru_cache(maxsize=10_000)
    def value(state: int) -> list[float]:
        return make(state)

    inside = next(part for part in gc.get_referents(value) if part == {})
    bounded, lines, _ = beside(value, inside)
    assert bounded.containers
    assert lines == []


def test_a_list_beside_a_deque_is_not_explained() -> None:
    frames: deque[object] = deque(maxlen=10_000)
    kept: list[object] = []

    def lap(number: int) -> None:
        frames.append(bytearray(300))
        kept.append({"episode": number})

    _, lines, rest = beside(lap, frames, kept)
    assert ['kept.append({"episode": number})' in show_line(*line) for line, _, _ in lines] == [True]
    assert len(rest) == 1
    assert rest[0] is kept


def test_a_deque_that_has_just_become_full_explains_what_it_took() -> None:
    frames: deque[object] = deque(maxlen=2 * LAPS)
    bounded, lines, rest = beside(lambda number: frames.append([number]), frames)
    assert [grower.room() for grower in bounded.containers] == [0]
    assert (lines, rest) == ([], [])


def test_a_list_without_a_limit_explains_nothing() -> None:
    frames: list[object] = []
    bounded, lines, rest = beside(lambda number: frames.append([number]), frames)
    assert bounded.containers == []
    assert lines
    assert rest == [frames]


def test_the_tables_of_deques_are_no_native_memory_beside_them() -> None:
    queues: list[deque[float]] = [deque([0.5] * 1000, maxlen=10_000) for _ in range(3)]
    bounded = bounded_by([Grower(queue, 1000, LAPS, LAPS) for queue in queues], traced=True)
    window = Window(LAPS, [], 2.0, Counter(), [], [], bounded=bounded)

    def rest(per_lap: float) -> float:
        signal: Any = SimpleNamespace(name="malloc")
        return _native_rest(Watched(signal, Rule(), judgement=Judgement(LeakState.LEAK, True, per_lap=per_lap)), window)

    assert rest(26.0) == 0
    assert rest(200.0) > 100

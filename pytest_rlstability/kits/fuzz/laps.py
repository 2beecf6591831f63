"""What only many laps show: memory that grows with each, and what ``close()`` leaves behind each time."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from pytest_rlstability.child.resources import ResourceSnapshot
from pytest_rlstability.kits.fuzz.calls import Call, Finding, FoundError, Kind, Op
from pytest_rlstability.kits.fuzz.laboratory import Case, Laboratory, Played
from pytest_rlstability.kits.fuzz.player import Player
from pytest_rlstability.kits.fuzz.values import draw
from pytest_rlstability.model.units import format_size
from pytest_rlstability.osinfo.memory import resident_memory

_PHASES, _SETTLING = 9, 3
"""Memory is read after each phase. The first ones fill caches and pools and are not judged."""
_LEAST_PER_LAP, _LEAST = 512, 192 * 1024
"""Bytes: a lap that keeps less, or all of them together, is not reported."""
_WITHOUT_CALLS = 20.0
"""Seconds that a fork may take to collect garbage and to look at what is left, in which it makes no call."""
_LAPS_AFTER_CLOSE = 3

_MAKE, _SEEDED, _PLAIN, _CLOSE = (
    Call(Op.MAKE),
    Call(Op.RESET, 0, (0, None)),
    Call(Op.RESET, 0, (None, None)),
    Call(Op.CLOSE),
)


def steady_growth(memory: Sequence[int], laps: int) -> float:
    """Bytes a lap, where *memory* has risen in every judged phase of *laps* laps at a similar pace; otherwise 0.

    >>> steady_growth([0, 90, 95, 100_000, 200_000, 300_000, 400_000], 100)
    1000.0
    >>> steady_growth([0, 0, 0, 500_000, 500_000, 500_000, 500_000], 100)
    0.0
    """
    judged = memory[_SETTLING - 1 :]
    rises = [after - before for before, after in pairwise(judged)]
    if not rises or min(rises) <= 0 or min(rises) < sorted(rises)[len(rises) // 2] / 4 or sum(rises) < _LEAST:
        return 0.0
    per_lap = (judged[-1] - judged[0]) / (len(rises) * laps)
    return round(per_lap, -1) if per_lap >= _LEAST_PER_LAP else 0.0


class Laps:
    """Looks for faults that come with repetition, in forks of *laboratory*."""

    def __init__(self, laboratory: Laboratory, seed: int) -> None:
        self._laboratory = laboratory
        self._seed = seed
        rng = np.random.default_rng(seed)
        self._steps = [Call(Op.STEP, 0, draw(laboratory.probe.action_space, rng)) for _ in range(8)]

    def growth(self, seconds: float) -> Case | None:
        """The shortest lap with which memory grows: a reset, an episode, or a whole env."""
        whole = [_MAKE, _SEEDED, *self._steps[:2], _CLOSE]
        for start, lap in (([_MAKE, _SEEDED], [_PLAIN]), ([_MAKE, _SEEDED], [_PLAIN, *self._steps]), ([], whole)):
            if per_lap := self._per_lap(start, lap, seconds / 3):
                found = Finding(
                    Kind.LEAK, "memory", f"memory grows by {format_size(per_lap)} with each lap: {_named(lap)}"
                )
                return self._case(found, [*start, *lap], len(start), per_lap)
        return None

    def leftovers(self) -> Case | None:
        """What each env leaves after ``close()``."""
        for lap in ([_MAKE, _CLOSE], [_MAKE, _SEEDED, _CLOSE], [_MAKE, _SEEDED, *self._steps[:3], _CLOSE]):
            left = self._run(partial(_left_after, self._laboratory.make_env, lap, self._laboratory.forks.cells))
            if left:
                kind = left[0].split(" ")[0]
                text = f"close() leaves something behind each time: {', '.join(left[:3])}"
                return self._case(Finding(Kind.LEFTOVER, kind, text), lap, 0, 0.0)
        return None

    def _per_lap(self, start: Sequence[Call], lap: Sequence[Call], seconds: float) -> float:
        laboratory = self._laboratory
        work = partial(_measure, laboratory.make_env, start, lap, laboratory.forks.cells, seconds)
        memory, laps = self._run(work) or ([], 1)
        return steady_growth(memory, laps)

    def _run(self, work: Callable[[], Any]) -> Any:
        """The result; None if the fork died, which a walk will find."""
        return self._laboratory.forks.run(work, self._laboratory.settings.stall_after + _WITHOUT_CALLS).result

    def _case(self, finding: Finding, calls: Sequence[Call], lap_start: int, per_lap: float) -> Case:
        played = Played(finding, tuple(calls))
        return Case(finding, played, self._seed, journal=tuple(calls), lap_start=lap_start, per_lap=per_lap)


def _named(lap: Sequence[Call]) -> str:
    steps = sum(call.op is Op.STEP for call in lap)
    names = [f"{call.op.name.lower()}()" for call in lap if call.op is not Op.STEP]
    return ", ".join(names[:2] + [f"{steps} x step()"] * bool(steps) + names[2:])


class _LapPlayer:
    """Plays laps, with a mark in the journal for each."""

    def __init__(self, make_env: Callable[[], Any], cells: Any) -> None:
        self._player = Player(make_env)
        self._cells = cells
        self._count = 0

    def play(self, calls: Sequence[Call]) -> None:
        self._count += 1
        self._cells[min(self._count, len(self._cells)) - 1] = self._count
        for call in calls:
            if self._player.allows(call):
                try:
                    self._player.play(call)
                except FoundError:  # the walks report it
                    continue


def _measure(
    make_env: Callable[[], Any], start: Sequence[Call], lap: Sequence[Call], cells: Any, seconds: float
) -> tuple[list[int], int]:
    """Memory after each phase, and the laps of one."""
    player, memory = _LapPlayer(make_env, cells), list[int]()
    player.play(start)
    began, laps = time.monotonic(), 0
    while time.monotonic() - began < seconds / (_PHASES + 1):
        player.play(lap)
        laps += 1
    for _ in range(_PHASES):
        for _ in range(laps):
            player.play(lap)
        gc.collect()
        memory.append(resident_memory(os.getpid()))
    return memory, laps


def _left_after(make_env: Callable[[], Any], lap: Sequence[Call], cells: Any) -> list[str]:
    """What is there after some laps and was not before, if each lap has left something. The first lap may start what
    stays for all."""
    player = _LapPlayer(make_env, cells)
    player.play(lap)
    gc.collect()
    before = ResourceSnapshot()
    for _ in range(_LAPS_AFTER_CLOSE):
        player.play(lap)
    gc.collect()
    return _still_left(before)


def _still_left(before: ResourceSnapshot) -> list[str]:
    """Threads and processes get a moment to end."""
    for _ in range(20):
        left = before.left_since()
        if len(left) < _LAPS_AFTER_CLOSE:
            return []
        time.sleep(0.05)
    return left

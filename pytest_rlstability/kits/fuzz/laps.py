"""What only many laps show: what grows with each, and what ``close()`` leaves behind each time."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from pytest_rlstability.child.resources import ResourceSnapshot
from pytest_rlstability.kits import PLUGINS
from pytest_rlstability.kits.fuzz.calls import Call, Case, Finding, FoundError, Growth, Kind, Op, Played
from pytest_rlstability.kits.fuzz.laboratory import Laboratory
from pytest_rlstability.kits.fuzz.player import Player, State
from pytest_rlstability.kits.fuzz.values import draw
from pytest_rlstability.leaks.check import LeakCheck
from pytest_rlstability.leaks.known_leaks import KnownLeak, shipped_known_leaks
from pytest_rlstability.leaks.outcome import run as judged
from pytest_rlstability.leaks.report import amount
from pytest_rlstability.leaks.settings import LeakSettings

_WITHOUT_CALLS = 20.0
"""Seconds that a fork may take to look at memory or at what is left, in which it makes no call."""
_LAPS_AFTER_CLOSE = 3
_CONFIRMING = 30.0
"""Seconds for which growth must go on to be a leak."""
_EPISODE = 100
"""The most steps of a lap."""


class Laps:
    """Looks for faults that come with repetition, in forks of *laboratory*."""

    def __init__(self, laboratory: Laboratory, seed: int) -> None:
        self._laboratory = laboratory
        self._seed = seed
        self._options = laboratory.settings.options[0]
        rng = np.random.default_rng(seed)
        self._steps = [Call(Op.STEP, 0, draw(laboratory.probe.action_space, rng)) for _ in range(_EPISODE)]
        self._made = [Call(Op.MAKE), Call(Op.RESET, 0, (0, self._options))]

    def growth(self, seconds: float) -> Case | None:
        """The shortest lap with which memory or anything else grows: a reset, an episode, a picture, a whole env."""
        plans = [*self._plans()]
        for start, lap in plans:
            grown = self._grown(start, lap, seconds / len(plans))
            # What grew in a short time may be a cache that fills up.
            if grown and (grown := self._grown(start, lap, _CONFIRMING)):
                signal, what, per_lap, evidence = grown
                finding = Finding(Kind.LEAK, f"{signal} with {_named(lap)}", f"{what} with each lap: {_named(lap)}",
                                  stack=evidence)  # fmt: skip
                return self._case(finding, [*start, *lap], len(start), Growth(signal, per_lap))
        return None

    def _grown(self, start: list[Call], lap: list[Call], seconds: float) -> Any:
        return self._run(partial(_grown, self._laboratory.make_env, start, lap, self._laboratory.forks.cells, seconds))

    def _plans(self) -> Iterator[tuple[list[Call], list[Call]]]:
        """What is done once, and what each lap does."""
        reset = Call(Op.RESET, 0, (None, self._options))
        yield self._made, [reset]
        yield self._made, [reset, *self._steps[:8]]
        yield self._made, [reset, *self._steps]
        if self._laboratory.probe.renders:
            yield self._made, [Call(Op.RENDER)]
        yield [], [*self._made, *self._steps[:2], Call(Op.CLOSE)]

    def leftovers(self) -> Case | None:
        """What each env leaves after ``close()``."""
        render = [Call(Op.RENDER)] * self._laboratory.probe.renders
        for lap in (self._made[:1], self._made, [*self._made, *self._steps[:3], *render]):
            lap = [*lap, Call(Op.CLOSE)]
            left = self._run(partial(_left_after, self._laboratory.make_env, lap, self._laboratory.forks.cells))
            if left:
                kind = left[0].split(" ")[0]
                text = f"close() leaves something behind each time: {', '.join(left[:3])}"
                return self._case(Finding(Kind.LEFTOVER, kind, text), lap, 0)
        return None

    def _run(self, work: Callable[[], Any]) -> Any:
        """The result; None if the fork died, which a walk will find."""
        return self._laboratory.forks.run(work, self._laboratory.settings.stall_after + _WITHOUT_CALLS).result

    def _case(self, finding: Finding, calls: Sequence[Call], start: int, growth: Growth | None = None) -> Case:
        played = Played(finding, tuple(calls))
        return Case(finding, played, self._seed, journal=tuple(calls), lap_start=start, growth=growth)


def _named(lap: Sequence[Call]) -> str:
    steps = sum(call.op is Op.STEP for call in lap)
    names = [call.name for call in lap if call.op is not Op.STEP]
    return ", ".join(names[:2] + [f"{'up to ' * (steps == _EPISODE)}{steps} x step()"] * bool(steps) + names[2:])


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
            if self._player.allows(call) and not (call.op is Op.STEP and self._player.state(0) is State.DONE):
                try:
                    self._player.play(call)
                except FoundError:  # the walks report it
                    continue


def _grown(
    make_env: Callable[[], Any], start: Sequence[Call], lap: Sequence[Call], cells: Any, seconds: float
) -> tuple[str, str, float, str] | None:
    """What grows: the signal, a text, how much with each lap, and who holds it. The leak check of the tests judges."""
    player = _LapPlayer(make_env, cells)
    player.play(start)
    check = LeakCheck(LeakSettings(checking=True, budget=seconds, open_known_leaks=_known_leaks))
    try:
        for count in judged(check):
            for _ in range(count):
                player.play(lap)
        if check.verdict is None:
            return None
        worst = check.leaks()[0]
        per_lap = worst.judgement.per_lap
        text = f"{worst.signal.title} grow by {amount(per_lap, worst.signal.unit)}"
        evidence = "\n\n".join(f"{title}\n{body}".strip() for title, body in check.verdict.sections)
        return worst.signal.name, text, per_lap, evidence
    finally:
        check.close()


def _known_leaks() -> list[KnownLeak]:
    """What the kits, too, know of memory that libraries keep."""
    kits = (import_module(name) for name in PLUGINS)
    theirs = (known for kit in kits for known in getattr(kit, "pytest_rlstability_known_leaks", list)())
    return [*shipped_known_leaks(), *theirs]


def _left_after(make_env: Callable[[], Any], lap: Sequence[Call], cells: Any) -> list[str]:
    """What is there after some laps and was not before, if each lap has left something. The first lap may start what
    stays for all."""
    player = _LapPlayer(make_env, cells)
    player.play(lap)
    gc.collect()
    before, files = ResourceSnapshot(), _files()
    for _ in range(_LAPS_AFTER_CLOSE):
        player.play(lap)
    gc.collect()
    for _ in range(20):  # threads and processes get a moment to end
        left = before.left_since() + [f"temporary file {name}" for name in sorted(_files() - files)]
        if len(left) < _LAPS_AFTER_CLOSE:
            return []
        time.sleep(0.05)
    return left


def _files() -> set[str]:
    """The temporary files. Forks have a directory of their own for these."""
    return set(os.listdir(tempfile.gettempdir()))

"""Searches: one attempt after another in forked processes, until one breaks the env or the time is over."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from pytest_rlstability.kits.fuzz.calls import Call, Case, Finding, Kind, Op, Played, Signature
from pytest_rlstability.kits.fuzz.differences import (
    Mirror,
    alone,
    beside_another,
    compare,
    in_fork,
    last_start,
    seeded_calls,
)  # fmt: skip
from pytest_rlstability.kits.fuzz.laboratory import Laboratory, death
from pytest_rlstability.kits.fuzz.laps import Laps
from pytest_rlstability.kits.fuzz.material import Material
from pytest_rlstability.kits.fuzz.player import Answers
from pytest_rlstability.kits.fuzz.shrink import Play, Shrinker
from pytest_rlstability.kits.fuzz.walk import Walk, Walked
from pytest_rlstability.model.units import counted

_FIRST_SLICE, _LONGEST_SLICE = 0.2, 3.0
"""Seconds of the first attempt and of the longest: a short one has few calls to shrink."""
_MANY_CALLS = 200
"""An attempt with fewer is of a slow env, which needs more time sooner."""
_LEFTOVER_TURNS, _GROWTH_TURNS = {3, 10, 25}, {8, 20, 60}
_GROWTH_SECONDS, _GROWTH_SHARE = 30.0, 0.3
"""A look for growth takes at most so long, and at most this share of the search."""
_COMPARED_STEPS = {4: 20, 12: 200, 16: 60, 30: 2000}
"""The turns in which answers are compared, and how many of them."""
_REPLAYS = 5
"""How often the calls of a finding are played again before it counts as one that does not come back."""


@dataclass
class Tally:
    """What the search has done so far."""

    attempts: int = 0
    steps: int = 0
    walking: float = 0.0
    unconfirmed: list[str] = field(default_factory=list)

    def line(self) -> str:
        speed = f", {self.steps / self.walking:,.0f} steps/s" if self.walking else ""
        return f"{counted(self.attempts, 'attempt')}, {counted(self.steps, 'step')}{speed}"


class Search:
    """``for case in Search(laboratory, say).cases()`` gives what is found, shrunk, until the time is over. *say* gets a
    line about the progress now and then. With a *target*, ``module:name``, fresh interpreters can make the env too."""

    def __init__(self, laboratory: Laboratory, say: Callable[[str], None], target: str = "") -> None:
        self._laboratory = laboratory
        self._say = say
        self._target = target
        self._seeds = np.random.default_rng(laboratory.settings.seed)
        self._known: set[Signature] = set()
        self._slice = _FIRST_SLICE
        self._comparing = min(5.0, max(2.0, laboratory.settings.seconds / 20))
        self.tally = Tally()

    def cases(self) -> Iterator[Case]:
        deadline = time.monotonic() + self._laboratory.settings.seconds
        while time.monotonic() < deadline:
            case = self._kind_of_attempt()(deadline)
            self.tally.attempts += 1
            self._say(self.tally.line())
            if case is not None and case.finding.signature not in self._known:
                self._known.add(case.finding.signature)
                yield case

    def _kind_of_attempt(self) -> Callable[[float], Case | None]:
        """Mostly walks; what takes longer comes after some of them, and then ever less often."""
        turn = self.tally.attempts
        if turn in _LEFTOVER_TURNS:
            return self._look_for_leftovers
        if turn in _COMPARED_STEPS:
            return self._look_for_differences
        return self._look_for_growth if turn in _GROWTH_TURNS else self._walk_and_shrink

    def _walk_and_shrink(self, deadline: float) -> Case | None:
        case = self._attempt(deadline)
        if case is None or case.finding.signature in self._known:
            return None
        shrunk = self._shrunk(case)
        if shrunk.seen == 0 and shrunk.finding.kind is not Kind.CRASH:
            self._not_confirmed(shrunk.finding.text, shrunk.tries, shrunk.seed)
            return None
        return shrunk

    def _shrunk(self, case: Case, play: Play | None = None) -> Case:
        self._say(f"{case.finding.kind}: {case.finding.text}; shrinking {counted(len(case.calls), 'call')}")
        deadline = time.monotonic() + self._laboratory.settings.shrink_seconds
        return Shrinker(self._laboratory, case, deadline, play).shrink()

    def _look_for_leftovers(self, deadline: float) -> Case | None:
        return Laps(self._laboratory, self._draw_seed()).leftovers()

    def _look_for_growth(self, deadline: float) -> Case | None:
        most = min(_GROWTH_SECONDS, _GROWTH_SHARE * self._laboratory.settings.seconds)
        seconds = min(most, max(1.0, deadline - time.monotonic()))
        return Laps(self._laboratory, self._draw_seed()).growth(seconds)

    def _look_for_differences(self, deadline: float) -> Case | None:
        """Play the same calls in two processes, then after an earlier episode, then beside another env."""
        laboratory, seed = self._laboratory, self._draw_seed()
        material = Material(seed, laboratory.probe.action_space, replace(laboratory.settings, invalid=False))
        length = _COMPARED_STEPS[self.tally.attempts]
        calls = seeded_calls(material.actions, laboratory.settings.options[0], material.rng, length)
        after = partial(self._with_and_without, "after an earlier episode")
        beside = partial(self._with_and_without, "beside another env")
        one_less = [*calls[: last_start(calls) - 1], *calls[last_start(calls) :]]
        looks = (
            partial(self._in_two_processes, calls, seed),
            partial(self._compared, calls, seed, after),
            partial(self._compared, one_less, seed, after),
            partial(self._compared, beside_another(calls), seed, beside),
        )
        return next(filter(None, (look() for look in looks if time.monotonic() < deadline)), None)

    def _in_two_processes(self, calls: list[Call], seed: int) -> Case | None:
        """Fresh interpreters with other hashes, if they can import the env; otherwise forks."""
        try:
            if self._target:
                with closing(Mirror(self._target, 1)) as one:
                    with closing(Mirror(self._target, 2 + self.tally.attempts)) as other:
                        play = partial(_in_mirrors, one, other, self._comparing)
                        return self._compared(calls, seed, play, (one.seed, other.seed))
        except (OSError, EOFError, pickle.PickleError) as error:
            self.tally.unconfirmed.append(f"no comparison of interpreters: {type(error).__name__}")
            self._target = ""
        return self._compared(calls, seed, self._in_two_forks, (1, 2))

    def _in_two_forks(self, calls: Sequence[Call], _: float | None = None) -> Played:
        return compare(calls, self._in_fork(calls, 1), self._in_fork(calls, 2))

    def _with_and_without(self, where: str, calls: Sequence[Call], _: float | None = None) -> Played:
        """What the env answers among the other calls, and what it answers alone."""
        start = last_start(calls)
        among = [answer for answer in self._in_fork(calls) if answer[0] >= start]
        return compare(calls, among, self._in_fork(alone(calls)), where)

    def _in_fork(self, calls: Sequence[Call], seed: int = 0) -> Answers:
        return in_fork(self._laboratory.forks, self._laboratory.make_env, calls, self._comparing, seed)

    def _compared(self, calls: list[Call], seed: int, play: Play, seeds: tuple[int, int] = (0, 0)) -> Case | None:
        played = play(calls, None)
        if played.finding is None or played.finding.signature in self._known:
            return None
        return self._shrunk(Case(played.finding, played, seed, journal=tuple(calls), hash_seeds=seeds), play)

    def _draw_seed(self) -> int:
        return int(self._seeds.integers(2**31))

    def _attempt(self, deadline: float) -> Case | None:
        """One random walk. What it finds is played again with exact checks."""
        laboratory, settings = self._laboratory, self._laboratory.settings
        seed = self._draw_seed()
        material = Material(seed, laboratory.probe.action_space, settings)
        seconds = min(self._slice, max(0.05, deadline - time.monotonic()))

        def walk() -> Walked:
            cells = laboratory.forks.cells
            walk = Walk(laboratory.make_env, material, cells, invalid=settings.invalid, ignored=self._known)
            return walk.run(seconds)

        ended = laboratory.forks.run(walk, settings.stall_after)
        self._slice = min((1.3 if len(ended.codes) > _MANY_CALLS else 2.0) * self._slice, _LONGEST_SLICE)
        known = {code: material.call(code) for code in set(ended.codes)}
        calls = [known[code] for code in ended.codes]
        if ended.died:
            self.tally.steps += sum(call.op is Op.STEP for call in calls)
            finding = death(ended, calls[-1], settings.stall_after)
            return self._confirmed(finding, calls, seed)
        walked: Walked = ended.result
        self.tally.steps += walked.steps
        self.tally.walking += walked.seconds
        return None if walked.suspect is None else self._confirmed(None, calls[: walked.suspect + 1], seed)

    def _confirmed(self, seen: Finding | None, calls: list[Call], seed: int) -> Case | None:
        """Play the calls again, several times if need be. A crash counts even if it does not come back."""
        if seen is not None and seen.signature in self._known:
            return None
        for tries in range(1, _REPLAYS + 1):
            played = self._laboratory.play(calls)
            if played.finding is not None and (seen is None or played.finding.kind is seen.kind):
                return Case(played.finding, played, seed, 1, tries, tuple(calls))
        if seen is not None and seen.kind is Kind.CRASH:
            return Case(seen, Played(seen, tuple(calls)), seed, 0, _REPLAYS, tuple(calls))
        self._not_confirmed(seen.text if seen else "an answer that looked wrong", _REPLAYS, seed)
        return None

    def _not_confirmed(self, what: str, replays: int, seed: int) -> None:
        self.tally.unconfirmed.append(f"{what}: not seen again in {replays} replays (attempt {seed})")


def _in_mirrors(one: Mirror, other: Mirror, seconds: float, calls: Sequence[Call], _: float | None = None) -> Played:
    return compare(calls, one.play(calls, seconds), other.play(calls, seconds))

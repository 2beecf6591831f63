"""Makes the calls that lead to a finding fewer and simpler, by playing parts of them again. Bounded by time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, groupby

import numpy as np

from pytest_rlstability.kits.fuzz.calls import Call, Case, Kind, Op, Played
from pytest_rlstability.kits.fuzz.laboratory import Laboratory
from pytest_rlstability.kits.fuzz.values import Style, draw

_STALL_WHILE_SHRINKING = 1.5
"""Seconds after which a call counts as stuck while a STALL is shrunk: each one that is, costs as many."""
_FEW = 60
"""As many calls are simplified one by one; of more, equal ones are together. As many runs are shortened."""
_SIMPLE: tuple[Style, ...] = ("zero", "low", "high")
_MOST_TRIES = 12
_MISSED = 0.05
"""How likely a part that does show the finding may be taken for one that does not."""


Play = Callable[[Sequence[Call], float | None], Played]


class Shrinker:
    """``Shrinker(laboratory, case, deadline).shrink()`` is the same case with as few calls as were found in time.
    *play* tries calls, in the laboratory if nothing else is said."""

    def __init__(self, laboratory: Laboratory, case: Case, deadline: float, play: Play | None = None) -> None:
        self._laboratory = laboratory
        self._play = play or partial(laboratory.play, checked=case.finding.kind not in (Kind.CRASH, Kind.STALL))
        self._case = case
        self._deadline = deadline
        self._finding = case.finding
        self._last = case.played
        self._stall_after: float | None = None
        self._tries = 1
        self._numbers: dict[str, int] = {}
        self._known: dict[int, tuple[Call, int]] = {}
        self._tried: set[tuple[int, ...]] = set()

    def shrink(self) -> Case:
        calls = list(self._case.calls)
        if self._finding.kind is Kind.STALL:
            limit = min(_STALL_WHILE_SHRINKING, self._laboratory.settings.stall_after)
            self._stall_after = limit if self._play(calls, limit).finding else None
        seen, tries = self._rate(calls)
        if seen == 0:
            return replace(self._case, seen=0, tries=tries)
        if seen < tries:
            self._tries = min(_MOST_TRIES, math.ceil(math.log(_MISSED) / math.log(1 - seen / tries)))
        for improve in (
            self._seeded,
            self._fewer_kinds,
            self._suffix,
            self._one_action,
            self._shorter_runs,
            self._fewer,
            self._simpler,
        ):
            calls = improve(calls)
        if self._stall_after is not None:
            self._stall_after = None
            if self._shows_once(calls) is None:  # what is left was only slow
                return replace(self._case, seen=seen, tries=tries)
        finding, played = self._last.finding or self._finding, _renumbered(self._last)
        return replace(self._case, finding=finding, played=played, seen=seen, tries=tries)

    def _rate(self, calls: Sequence[Call]) -> tuple[int, int]:
        """How often the calls show the finding. One that always came in three replays is taken to come always."""
        seen = sum(self._shows_once(calls) is not None for _ in range(3))
        if seen == 3 or self._stall_after is not None:
            return seen, 3
        return seen + sum(self._shows_once(calls) is not None for _ in range(7)), 10

    def _shows_once(self, calls: Sequence[Call]) -> list[Call] | None:
        """The calls that were made, if they show the finding."""
        played = self._play(calls, self._stall_after)
        if played.finding is None or played.finding.signature != self._finding.signature:
            return None
        self._last = played
        return list(played.calls)

    def _shows(self, calls: Sequence[Call]) -> list[Call] | None:
        """The same in as many tries as it takes; calls that were tried before are not tried again."""
        if time.monotonic() >= self._deadline:
            return None
        key = tuple(map(self._number, calls))
        if key in self._tried:
            return None
        self._tried.add(key)
        for _ in range(self._tries):
            if time.monotonic() >= self._deadline:
                return None
            if (made := self._shows_once(calls)) is not None:
                return made
        return None

    def _number(self, call: Call) -> int:
        """The same for equal calls. Most are the same object, for which the text is made once."""
        if id(call) not in self._known:
            self._known[id(call)] = call, self._numbers.setdefault(repr(call), len(self._numbers))
        return self._known[id(call)][1]

    def _seeded(self, calls: list[Call]) -> list[Call]:
        """Every reset with a seed or options becomes a plain one, or one with seed 0; the first of each env has it."""
        for seed in (None, 0):
            value = (seed, self._laboratory.settings.options[0])
            plain = [replace(call, value=value) if call.op is Op.RESET and call.valid else call for call in calls]
            if shown := self._shows(with_first_seeds(plain)):
                return shown
        return self._shows(with_first_seeds(calls)) or calls

    def _fewer_kinds(self, calls: list[Call]) -> list[Call]:
        """Without the second env, and without all calls of one kind."""
        calls = self._shows([call for call in calls if call.env == 0]) or calls
        for op in Op:
            if op is not Op.MAKE:
                calls = self._shows([call for call in calls if call.op is not op]) or calls
        return calls

    def _suffix(self, calls: list[Call]) -> list[Call]:
        """Only the last calls, after what makes and resets the envs; twice as many of them each time."""
        length = 1
        while length < len(calls):
            head = calls[:-length]
            start = _last_of_each(head, Op.MAKE) + _last_of_each(head, Op.RESET)
            if shown := self._shows(with_first_seeds([*start, *calls[-length:]])):
                return shown
            length *= 2
        return calls

    def _one_action(self, calls: list[Call]) -> list[Call]:
        """The same action in every step."""
        for style in _SIMPLE:
            simple = draw(self._laboratory.probe.action_space, np.random.default_rng(0), style)
            same = [replace(call, value=simple) if call.op is Op.STEP and call.valid else call for call in calls]
            if (shown := self._shows(same)) and len(shown) == len(calls):
                return shown
        return calls

    def _shorter_runs(self, calls: list[Call]) -> list[Call]:
        """Runs of the same call, each as short as may be, by halving."""
        runs = [[*group] for _, group in groupby(calls, key=self._number)]
        for number in sorted(range(len(runs)), key=lambda number: -len(runs[number]))[:_FEW]:
            run = runs[number]
            least, most = 0, len(run)
            while len(run) > 2 and least < most:
                middle = (least + most) // 2
                rest = [*chain(*runs[:number]), *run[:middle], *chain(*runs[number + 1 :])]
                if (shown := self._shows(rest)) and len(shown) == len(rest):
                    most = middle
                else:
                    least = middle + 1
            runs[number] = run[:most]
        return [*chain(*runs)]

    def _fewer(self, calls: list[Call]) -> list[Call]:
        """Delta debugging: leave out ever smaller parts, as long as what is left shows the finding."""
        size = len(calls) // 2
        while size >= 1 and time.monotonic() < self._deadline:
            start, before = 0, len(calls)
            while start < len(calls):
                rest = calls[:start] + calls[start + size :]
                if rest and (shown := self._shows(rest)):
                    calls = shown
                else:
                    start += size
            size = size // 2 if len(calls) == before or size > len(calls) // 2 else size
            size = min(size, max(1, len(calls) // 2)) if size else 0
        return calls

    def _simpler(self, calls: list[Call]) -> list[Call]:
        """Simple actions in place of random ones: first for all steps, then for those that have the same action."""
        steps = [number for number, call in enumerate(calls) if call.op is Op.STEP and call.valid]
        single = [[number] for number in steps] if len(calls) <= _FEW else _same_actions(calls)
        settled = set[int]()
        for style in _SIMPLE:
            simple = draw(self._laboratory.probe.action_space, np.random.default_rng(0), style)
            for group in ([number for number in steps if number not in settled], *single):
                if not group or settled.issuperset(group):
                    continue
                changed = [
                    replace(call, value=simple) if number in group else call for number, call in enumerate(calls)
                ]
                if (shown := self._shows(changed)) and len(shown) == len(calls):
                    calls = shown
                    settled.update(group)
        return calls


def _renumbered(played: Played) -> Played:
    """The envs numbered as they are made."""
    numbers: dict[int, int] = {}
    for call in played.calls:
        numbers.setdefault(call.env, len(numbers))

    def renumbered(call: Call) -> Call:
        beside = call.op in (Op.PICKLE, Op.COPY) and call.value is not None
        return replace(call, env=numbers[call.env], value=1 - numbers[call.env] if beside else call.value)

    return replace(played, calls=tuple(map(renumbered, played.calls)))


def with_first_seeds(calls: Sequence[Call]) -> list[Call]:
    """The same calls, with seed 0 for the first reset of each env that has none: a test must not depend on chance."""
    changed, seeded = list[Call](), set[int]()
    for call in calls:
        if call.op is Op.MAKE:
            seeded.discard(call.env)
        if call.op is Op.RESET and call.env not in seeded and call.valid:
            seeded.add(call.env)
            if call.value[0] is None:
                call = replace(call, value=(0, call.value[1]))
        changed.append(call)
    return changed


def _last_of_each(calls: Sequence[Call], op: Op) -> list[Call]:
    """The last such call for each env."""
    return [*{call.env: call for call in calls if call.op is op and call.valid}.values()]


def _same_actions(calls: Sequence[Call]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for number, call in enumerate(calls):
        if call.op is Op.STEP and call.valid:
            groups.setdefault(repr(call.value), []).append(number)
    return [*groups.values()]

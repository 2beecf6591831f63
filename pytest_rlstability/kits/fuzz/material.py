"""What one attempt is made of, all drawn from one number: its actions, resets, and the tape of what is done when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pytest_rlstability.kits.fuzz.calls import Call, Op, Settings
from pytest_rlstability.kits.fuzz.values import action_table, invalid_actions

_TABLE = 96
_ENV, _OP = 32, 40
_INDEX = (1 << _ENV) - 1
_GAPS = (1, 4, 20, 150, 4000)
"""How many steps pass between two other calls, on average; one of these for an attempt."""


_EVENTS = {"reset": 6, "seeded reset": 3, "render": 2, "close": 2, "pickle": 1, "copy": 1, "drop": 1, "switch": 4}
"""What comes between steps, and how often."""


class Material:
    """The calls that an attempt may make, by index, so that the journal needs one number for each."""

    def __init__(self, seed: int, action_space: Any, settings: Settings) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.actions = action_table(action_space, rng, _TABLE)
        self.valid_actions = len(self.actions)
        self.resets: list[tuple[Any, Any]] = [(None, options) for options in settings.options]
        self.plain_resets = len(self.resets)
        seeds = (0, *(int(rng.integers(2**31)) for _ in range(4)))
        self.resets += [(seed, settings.options[number % self.plain_resets]) for number, seed in enumerate(seeds)]
        self.valid_resets = len(self.resets)
        if settings.invalid:
            self.actions += invalid_actions(action_space, rng)
            self.resets += [(-1, None), ("one", None), (1.5, None), (None, 5), (2**70, None), (None, {"no such": 1})]

    def code(self, op: Op, env: int, index: int = 0) -> int:
        return op << _OP | env << _ENV | index

    def call(self, code: int) -> Call:
        op, env, index = Op(code >> _OP), code >> _ENV & 0xFF, code & _INDEX
        if op is Op.STEP:
            return Call(op, env, self.actions[index], index < self.valid_actions)
        if op is Op.RESET:
            return Call(op, env, self.resets[index], index < self.valid_resets)
        return Call(op, env, 1 - env if index else None)

    def seeded_reset(self) -> int:
        """The index of a reset that has a seed."""
        return int(self.rng.integers(self.plain_resets, self.valid_resets))


class Tape:
    """What an attempt does when: runs of actions, and the calls between them."""

    def __init__(self, material: Material) -> None:
        rng = self._rng = material.rng
        self._material = material
        self.gap = int(rng.choice(_GAPS))
        self.two = bool(rng.random() < 0.35)
        self.lingers = bool(rng.random() < 0.5)
        # Some attempts make only a few kinds of calls: a fault that comes early hides all that come later.
        chances = np.array([*_EVENTS.values()]) * (rng.random(len(_EVENTS)) < 0.7)
        chances[-1] *= self.two
        self._events = chances / chances.sum() if chances.any() else np.eye(len(_EVENTS))[0]

    def event(self) -> str:
        return str(self._rng.choice([*_EVENTS], p=self._events))

    def actions(self) -> list[int]:
        """The actions until the next other call, as indexes: patterns one after another."""
        length = int(self._rng.geometric(1 / self.gap)) if self.gap > 1 else 1
        indexes = list[int]()
        for pattern in self._patterns():
            indexes += pattern
            if len(indexes) >= length:
                break
        return indexes[:length]

    def _patterns(self) -> Iterator[Sequence[int]]:
        """Anything; one action for a while; two in turns; all in order; the extremes, which come first in the table."""
        rng, all_actions = self._rng, len(self._material.actions)
        while True:
            kind, run = rng.random(), int(rng.choice((3, 12, 60, 400)))
            if kind < 0.5:
                yield rng.integers(0, all_actions, run).tolist()
            elif kind < 0.65:
                yield [int(rng.integers(all_actions))] * run
            elif kind < 0.8:
                yield rng.integers(0, all_actions, 2).tolist() * (run // 2)
            elif kind < 0.9:
                yield range(all_actions)
            else:
                yield rng.integers(0, min(5, all_actions), run).tolist()

"""One attempt: a random walk through the calls that an env allows, as fast as a bare loop nearly is.

Its checks are cheap ones, made for many steps at once or for some. They only raise a suspicion: the exact checks of
``player`` decide, when the calls are played again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from pytest_rlstability.kits.fuzz.answers import copied, is_flag, same, wrong_answer
from pytest_rlstability.kits.fuzz.calls import Call, FoundError, Kind, Op, Signature
from pytest_rlstability.kits.fuzz.material import Material, Tape
from pytest_rlstability.kits.fuzz.player import Player, State, exception, is_api_error

_TOGETHER, _ROOM = 96, 16 * 2**20
"""Answers that are checked together, and the bytes of memory that their observations may take."""
_ALIAS = (Kind.ALIAS, "observation")
_LOOK_EVERY = 16
"""Of so many calls, the observation of one is watched for reuse."""
_CALLS_PER_GAP = 150
_MARGIN = 2048
"""Cells of the journal that are left for the end of an attempt."""


@dataclass(frozen=True)
class Walked:
    """*suspect* is the call whose answer looks wrong, or None. *steps* in *seconds* is the speed."""

    suspect: int | None
    steps: int
    seconds: float


class SuspicionError(Exception):
    """The answer to call number *at* looks wrong."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class Walk:
    """``Walk(make_env, material, cells).run(seconds)`` plays calls until the time is over or one is suspect. Faults of
    the signatures in *ignored* are known already."""

    def __init__(
        self,
        make_env: Callable[[], Any],
        material: Material,
        cells: Any,
        *,
        invalid: bool,
        ignored: Collection[Signature] = (),
    ) -> None:
        self._player = Player(make_env, invalid=invalid)
        self._material = material
        self._tape = Tape(material)
        self._cells = cells
        self._ignored = frozenset(ignored)
        self._count = self._steps = 0
        self._deadline = 0.0
        # Calls other than steps cost much more. Attempts that make many are short: most of the time is for steps.
        self._most = min(len(cells) - _MARGIN, _CALLS_PER_GAP * self._tape.gap)
        self._checks: dict[int, AnswerCheck] = {}

    def run(self, seconds: float) -> Walked:
        began, suspect = time.monotonic(), None
        try:
            self._start(0)
            # To make an env may take longer than the whole attempt.
            began = time.monotonic()
            self._deadline = began + seconds
            if self._tape.two:
                self._start(1)
            current = 0
            while not self._is_over():
                self._walk(current, self._tape.actions())
                current = self._event(current)
            self._finish()
        except (FoundError, SuspicionError) as found:
            suspect = found.at if isinstance(found, SuspicionError) else found.finding.at
        return Walked(suspect, self._steps, time.monotonic() - began)

    def _is_over(self) -> bool:
        return time.monotonic() >= self._deadline or self._count >= self._most

    def _do(self, op: Op, env: int, index: int = 0) -> None:
        """Make one call with all checks, if the rules allow it."""
        code = self._material.code(op, env, index)
        call = self._material.call(code)
        if not self._player.allows(call):
            return
        self._cells[self._count] = code
        self._count += 1
        try:
            self._player.play(call, self._count - 1)
        except FoundError as found:
            if found.finding.signature not in self._ignored:
                raise

    def _start(self, env: int) -> None:
        self._do(Op.MAKE, env)
        self._begin(env)

    def _begin(self, env: int) -> None:
        """The first reset of an env, and a new check for it."""
        self._do(Op.RESET, env, self._material.seeded_reset())
        if env in self._checks:
            self._checks[env].check()
        space = getattr(self._player.envs.get(env), "observation_space", None)
        self._checks[env] = AnswerCheck(space, self._ignored)

    def _event(self, env: int) -> int:
        """Make the call that comes next, and say which env goes on."""
        rng = self._material.rng
        event = self._tape.event()
        if event == "switch":
            return 1 - env
        if event == "close":
            self._close(env)
            self._start(env)
        elif event == "drop":
            self._do(Op.DROP, env)
            self._start(env)
        elif event == "reset":
            resets = self._material.plain_resets if rng.random() < 0.9 else len(self._material.resets)
            self._do(Op.RESET, env, int(rng.integers(resets)))
        elif event == "seeded reset":
            self._do(Op.RESET, env, self._material.seeded_reset())
        elif event == "render":
            self._do(Op.RENDER, env)
        else:
            self._do(Op.PICKLE if event == "pickle" else Op.COPY, env, int(rng.integers(2)))
        for made in (0, 1):
            if self._player.state(made) is State.FRESH:
                self._begin(made)
        return env

    def _close(self, env: int) -> None:
        """Close, now and then twice, and now and then use the env once more."""
        rng = self._material.rng
        for _ in range(1 + int(rng.random() < 0.4)):
            self._do(Op.CLOSE, env)
        if rng.random() < 0.3:
            self._do(Op.STEP, env)
        if rng.random() < 0.2:
            self._do(Op.RESET, env)
        if rng.random() < 0.2:
            self._do(Op.RENDER, env)

    def _finish(self) -> None:
        for check in self._checks.values():
            check.check()
        for env in [*self._player.envs]:
            self._close(env)
            self._do(Op.DROP, env)

    def _walk(self, env: int, indexes: list[int]) -> None:
        """Steps, with a reset after each episode."""
        done = 0
        while done < len(indexes) and not self._is_over():
            if self._player.state(env) is not State.READY:
                self._leave_episode(env)
            elif indexes[done] >= self._material.valid_actions:
                self._do(Op.STEP, env, indexes[done])
                done += 1
            else:
                done += self._fast_steps(env, indexes, done)

    def _leave_episode(self, env: int) -> None:
        rng = self._material.rng
        if self._tape.lingers and self._player.state(env) is State.DONE and rng.random() < 0.5:
            self._do(Op.STEP, env, int(rng.integers(self._material.valid_actions)))
        if self._tape.lingers and rng.random() < 0.2:
            self._do(Op.RENDER, env)
        plain = int(rng.integers(self._material.plain_resets))
        self._do(Op.RESET, env, self._material.seeded_reset() if rng.random() < 0.1 else plain)
        if self._player.state(env) is not State.READY:  # it refuses to be reset
            self._deadline = 0.0

    def _fast_steps(self, env: int, indexes: list[int], done: int) -> int:
        """Make the steps from number *done* on, with plain resets between most episodes, and return how many."""
        driven, check, cells, actions = self._player.envs[env], self._checks[env], self._cells, self._material.actions
        step, base, valid = driven.step, self._material.code(Op.STEP, env), self._material.valid_actions
        plain_reset, lingers = self._material.code(Op.RESET, env), self._tape.lingers
        count, steps, room, options = self._count, 0, self._most, self._material.resets[0][1]
        observations, rewards, numbers = check.observations, check.rewards, check.numbers
        try:
            for index in islice(indexes, done, None):
                if index >= valid or count >= room:
                    break
                cells[count] = base | index
                count += 1
                steps += 1
                observation, reward, terminated, truncated, info = step(actions[index])
                observations.append(observation)
                rewards.append(reward)
                numbers.append(count - 1)
                phase = count % _LOOK_EVERY
                if phase < 2:
                    check.watch(phase, observation, count)
                    if not (is_flag(terminated) and is_flag(truncated) and isinstance(info, Mapping)):
                        raise SuspicionError(count - 1)
                    if len(numbers) >= check.together:
                        check.check()
                        observations, rewards, numbers = check.observations, check.rewards, check.numbers
                    if time.monotonic() >= self._deadline:
                        break
                if terminated or truncated:
                    if lingers or not count % 8:
                        self._player.states[env] = State.DONE
                        break
                    cells[count] = plain_reset
                    count += 1
                    observations.append(driven.reset(seed=None, options=options)[0])
                    rewards.append(0.0)
                    numbers.append(count - 1)
        except BaseException as error:  # an env may raise anything
            if isinstance(error, SuspicionError):
                raise
            known = is_api_error(error) or exception(error, Call(Op.STEP), 0).signature in self._ignored
            if not known:
                raise SuspicionError(count - 1) from None
            self._player.states[env] = State.FRESH
        finally:
            self._steps += steps
            self._count = count
        return steps


class AnswerCheck:
    """Gathers the answers of one env and checks many together. One observation in so many is watched for reuse."""

    def __init__(self, space: Any, ignored: Collection[Signature]) -> None:
        self._space = space
        self._ignored = ignored
        size = space.dtype.itemsize * math.prod(space.shape) if type(space).__name__ == "Box" else 1
        self.together = max(1, min(_TOGETHER, _ROOM // max(size, 1)))
        self._watched: Any = None
        self._copy: Any = None
        self.observations: list[Any] = []
        self.rewards: list[Any] = []
        self.numbers: list[int] = []

    def watch(self, phase: int, observation: Any, count: int) -> None:
        """See in phase 1, one step after the last look, and in phase 0 whether an observation has changed since."""
        if self._watched is not None and not same(self._watched, self._copy) and _ALIAS not in self._ignored:
            raise SuspicionError(count - 1)
        if phase == 0:
            self._watched, self._copy = observation, copied(observation)

    def check(self) -> None:
        """Check what was gathered; a suspicion names the first call."""
        observations, rewards, numbers = self.observations, self.rewards, self.numbers
        self.observations, self.rewards, self.numbers = [], [], []
        if self._are_fine(observations, rewards):
            return
        for observation, reward, number in zip(observations, rewards, numbers, strict=True):
            finding = wrong_answer(self._space, observation, reward, Call(Op.STEP), number)
            if finding and finding.signature not in self._ignored:
                raise SuspicionError(number)

    def _are_fine(self, observations: list[Any], rewards: list[Any]) -> bool:
        """Whether a look at all of them together shows that each is right."""
        space = self._space
        if type(space).__name__ != "Box" or not observations:
            return not observations
        if any(
            one.__class__ is not np.ndarray or one.dtype != space.dtype or one.shape != space.shape
            for one in observations
        ):
            return False
        try:
            if not np.isfinite(np.array(rewards, dtype=float)).all():
                return False
        except (TypeError, ValueError):
            return False
        if space.dtype == np.uint8 and space.low.min() == 0 and space.high.max() == 255 == space.high.min():
            return True
        rows = np.array(observations)
        return bool(((rows >= space.low) & (rows <= space.high)).all())  # a comparison with NaN is false, too

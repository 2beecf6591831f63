"""Makes calls to envs one by one, and checks each answer: exceptions, spaces, NaN, reused buffers.

It keeps to Gymnasium's rules by itself: a call that they forbid at this moment, such as a step before the first reset,
is left out. So any part of a sequence of calls is a sequence that may be tried.
"""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import takewhile
from typing import Any

import numpy as np

from pytest_rlstability.kits.fuzz.adapters import Adapter, adapt
from pytest_rlstability.kits.fuzz.calls import Call, Finding, FoundError, Kind, Op
from pytest_rlstability.kits.fuzz.compare import copied, digest, has_nan, misfit, same
from pytest_rlstability.model.stack_dump import Frame, render_frames
from pytest_rlstability.model.user_code import package_path

Answer = tuple[Any, Any, bool]
"""Observation, reward and whether the episode is over."""


class State(Enum):
    ABSENT = "not made"
    FRESH = "needs a reset"
    READY = "in an episode"
    DONE = "its episode is over"
    CLOSED = "closed"


class Player:
    """Plays calls on at most a few envs. *invalid* allows what the rules forbid; then only crashes and stalls count."""

    def __init__(self, make_env: Callable[[], Any], *, invalid: bool = False) -> None:
        self._make_env = make_env
        self._invalid = invalid
        self.envs: dict[int, Any] = {}
        self.states: dict[int, State] = {}
        self.raised = False
        self._spoilt: set[int] = set()
        self._kept: dict[int, tuple[Any, Any]] = {}
        self._operations: dict[Op, Callable[[Call], Answer | None]] = {
            Op.MAKE: self._make, Op.RESET: self._reset, Op.STEP: self._step, Op.RENDER: self._render,
            Op.CLOSE: self._close, Op.PICKLE: self._pickle, Op.COPY: self._copy,
        }  # fmt: skip

    def state(self, env: int) -> State:
        return self.states.get(env, State.ABSENT)

    def allows(self, call: Call) -> bool:
        """Whether the rules allow *call* now. After ``close`` a reset or step is tried too: it may raise, not crash."""
        state = self.state(call.env)
        if call.op is Op.MAKE:
            return state in (State.ABSENT, State.CLOSED)
        if state is State.ABSENT or not (call.valid or self._invalid):
            return False
        if call.op is Op.STEP:
            return state is not State.FRESH or self._invalid
        if call.op is Op.RENDER:
            return state is State.READY and getattr(self.envs[call.env], "render_mode", None) is not None
        return call.op not in (Op.PICKLE, Op.COPY) or state is not State.CLOSED

    def is_lenient(self, call: Call) -> bool:
        """Whether any answer to *call* is right, an exception too, as long as there is one."""
        state = self.state(call.env)
        after_the_end = state is State.CLOSED and call.op is not Op.CLOSE and call.op is not Op.MAKE
        outside = call.op is Op.STEP and state is not State.READY
        return not call.valid or after_the_end or outside or call.op in (Op.PICKLE, Op.COPY) or call.env in self._spoilt

    def play(self, call: Call, number: int = 0) -> Answer | None:
        """Make *call*, which is the one with this *number*. Raises ``FoundError`` when its answer is wrong."""
        lenient, self.raised = self.is_lenient(call), False
        try:
            answer = self._operations[call.op](call)
        except (Exception, SystemExit) as error:
            if not lenient and not is_api_error(error):
                raise FoundError(_exception(error, call, number)) from None
            self._after_error(call)
            self.raised = True
            return None
        if not call.valid:
            self._spoilt.add(call.env)
        elif call.op in (Op.MAKE, Op.RESET):
            self._spoilt.discard(call.env)
        if answer is not None and not lenient:
            self._check(call, answer, number)
        return answer

    def _after_error(self, call: Call) -> None:
        if call.op in (Op.RESET, Op.STEP) and self.state(call.env) not in (State.ABSENT, State.CLOSED):
            self.states[call.env] = State.FRESH

    def _check(self, call: Call, answer: Answer, number: int) -> None:
        observation, reward, _ = answer
        space = getattr(self.envs[call.env], "observation_space", None)
        finding = wrong_answer(space, observation, reward, call.op, number) or self._overwritten(call, number)
        self._kept[call.env] = (observation, copied(observation))
        if finding:
            raise FoundError(finding)

    def _overwritten(self, call: Call, number: int) -> Finding | None:
        earlier, kept = self._kept.get(call.env, (None, None))
        if same(earlier, kept):
            return None
        change = _where(earlier, kept)
        text = f"{call.op.name.lower()}() overwrote the observation that the call before had returned: {change}"
        return Finding(Kind.ALIAS, "observation", text, number)

    def _make(self, call: Call) -> None:
        self.envs[call.env] = adapt(self._make_env())
        self.states[call.env] = State.FRESH
        self._kept.pop(call.env, None)

    def _reset(self, call: Call) -> Answer:
        seed, options = call.value
        answer = self.envs[call.env].reset(seed=seed, options=options)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(f"reset() returned {type(answer).__name__}, not (observation, info)")
        if self.state(call.env) is not State.CLOSED:
            self.states[call.env] = State.READY
        return answer[0], 0.0, False

    def _step(self, call: Call) -> Answer:
        answer = self.envs[call.env].step(call.value)
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise TypeError(f"step() returned {type(answer).__name__}, not five values")
        observation, reward, terminated, truncated, _ = answer
        over = bool(terminated or truncated)
        if over and self.state(call.env) is State.READY:
            self.states[call.env] = State.DONE
        return observation, reward, over

    def _render(self, call: Call) -> None:
        self.envs[call.env].render()

    def _close(self, call: Call) -> None:
        self.envs[call.env].close()
        self.states[call.env] = State.CLOSED

    def _pickle(self, call: Call) -> None:
        self._replace(call.env, lambda env: pickle.loads(pickle.dumps(env)))

    def _copy(self, call: Call) -> None:
        self._replace(call.env, copy.deepcopy)

    def _replace(self, number: int, duplicate: Callable[[Any], Any]) -> None:
        """Go on with the duplicate. Gymnasium's ``EzPickle`` makes a new env, which needs a reset."""
        env = self.envs[number]
        self.envs[number] = adapt(duplicate(env.env if isinstance(env, Adapter) else env))
        self.states[number] = State.FRESH
        self._kept.pop(number, None)


def wrong_answer(space: Any, observation: Any, reward: Any, op: Op, number: int) -> Finding | None:
    """What is wrong with an observation or a reward by itself."""
    call = f"{op.name.lower()}()"
    if has_nan(observation):
        return Finding(Kind.NAN, "observation", f"the observation of {call} has a NaN", number)
    if reason := misfit(space, observation):
        field = reason.split(" ")[0].split("[")[0]
        return Finding(Kind.SPACE, field, f"{reason}, after {call}", number)
    if reason := _wrong_reward(reward):
        kind = Kind.NAN if "NaN" in reason else Kind.SPACE
        return Finding(kind, "reward", f"the reward of {call} {reason}", number)
    return None


def _wrong_reward(reward: Any) -> str:
    try:
        numbers = np.asarray(reward, dtype=float)
    except (TypeError, ValueError):
        return f"is {reward!r}, which is not a number"
    if np.isnan(numbers).any():
        return "is NaN"
    return "" if np.isfinite(numbers).all() else f"is {reward}, which is not finite"


def is_api_error(error: BaseException) -> bool:
    """Whether Gymnasium itself complains, or something is not installed."""
    own = any(base.__module__.startswith("gymnasium.error") for base in type(error).__mro__)
    return own or isinstance(error, ImportError)


def _exception(error: BaseException, call: Call, number: int) -> Finding:
    frames = [
        Frame(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)
    ]
    place = next((frame for frame in reversed(frames) if frame.is_users), frames[-1])
    words = traceback.format_exception_only(type(error), error)[-1].strip()
    text = f"{call.op.name.lower()}() raised {words}"
    stack = render_frames("stack of the call, newest first", [*takewhile(_is_not_ours, reversed(frames))])
    return Finding(Kind.EXCEPTION, f"{type(error).__name__} in {place.function}", text, number, stack)


def _is_not_ours(frame: Frame) -> bool:
    return not package_path(frame.file)


def _where(now: Any, before: Any) -> str:
    """Which element of an array changed, and how."""
    if isinstance(now, np.ndarray) and isinstance(before, np.ndarray) and now.ndim:
        changed = np.argwhere(now != before)
        if len(changed):
            at = tuple(int(index) for index in changed[0])
            return f"element {', '.join(map(str, at))} was {before[at]} and is {now[at]}"
    return "its content has changed"


RAISED = 1 << 62
"""Added to a call's entry in the journal when it has raised an exception that is allowed."""


def play_all(
    make_env: Callable[[], Any], calls: Sequence[Call], cells: Any, *, invalid: bool = False
) -> Finding | None:
    """Play *calls* up to the first finding. Each that is made has its number, from 1, in the journal."""
    player, made = Player(make_env, invalid=invalid), 0
    for number, call in enumerate(calls):
        if player.allows(call):
            cells[made] = number + 1
            try:
                player.play(call, number)
            except FoundError as found:
                return found.finding
            if player.raised:
                cells[made] |= RAISED
            made += 1
    return None


def trajectory(make_env: Callable[[], Any], calls: Sequence[Call], cells: Any) -> list[tuple[int, int, str, bool]]:
    """The answers to *calls*, each as numbers to compare: which call, the observation's digest, the reward, the end.
    Steps after the end of an episode are left out."""
    player, answers = Player(make_env), list[tuple[int, int, str, bool]]()
    for number, call in enumerate(calls):
        if not player.allows(call) or (call.op is Op.STEP and player.state(call.env) is not State.READY):
            continue
        cells[number] = number + 1
        try:
            answer = player.play(call, number)
        except FoundError:
            return answers
        if answer is not None:
            answers.append((number, digest(answer[0]), repr(np.asarray(answer[1]).tolist()), answer[2]))
    return answers

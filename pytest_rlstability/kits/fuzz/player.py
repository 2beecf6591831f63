"""Makes calls to envs one by one, and checks each answer: exceptions, spaces, NaN, reused buffers.

It keeps to Gymnasium's rules by itself: a call that they forbid at this moment, such as a step before the first reset,
is left out. So any part of a sequence of calls is a sequence that may be tried.
"""

from __future__ import annotations

import copy
import gc
import pickle
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import takewhile
from typing import Any

from pytest_rlstability.kits.fuzz.adapters import Adapter, adapt
from pytest_rlstability.kits.fuzz.answers import change, copied, fields, misshapen, same, wrong_answer
from pytest_rlstability.kits.fuzz.calls import Call, Finding, FoundError, Kind, Op
from pytest_rlstability.model.stack_dump import Frame, render_frames
from pytest_rlstability.model.user_code import package_path

Answer = tuple[Any, Any, bool]
"""Observation, reward and whether the episode is over."""
_WATCHED = 16
"""So many of the newest observations must stay as they are."""


class State(Enum):
    ABSENT = "not made"
    FRESH = "needs a reset"
    READY = "in an episode"
    DONE = "its episode is over"
    CLOSED = "closed"


class Player:
    """Plays calls on at most two envs. *invalid* allows what the rules forbid; then only crashes and stalls count.
    Unless they are *checked*, an exception is all that can be wrong with answers."""

    def __init__(self, make_env: Callable[[], Any], *, invalid: bool = False, checked: bool = True) -> None:
        self._make_env = make_env
        self._invalid = invalid
        self._checked = checked
        self.envs: dict[int, Any] = {}
        self.states: dict[int, State] = {}
        self.raised = False
        self._spoilt: set[int] = set()
        self._copied: set[int] = set()
        """Envs that may share descriptors with a copy, which closes them too."""
        self._watched: deque[tuple[Call, int, Any, Any]] = deque(maxlen=_WATCHED)
        self._operations: dict[Op, Callable[[Call, int], Answer | None]] = {
            Op.MAKE: self._make, Op.RESET: self._reset, Op.STEP: self._step, Op.RENDER: self._render,
            Op.CLOSE: self._close, Op.PICKLE: self._duplicate, Op.COPY: self._duplicate, Op.DROP: self._drop,
        }  # fmt: skip

    def state(self, env: int) -> State:
        return self.states.get(env, State.ABSENT)

    def allows(self, call: Call) -> bool:
        """Whether the rules allow *call* now. What comes after ``close`` is tried too: it may raise, not crash."""
        state = self.state(call.env)
        if call.op is Op.MAKE:
            return state in (State.ABSENT, State.CLOSED)
        if state is State.ABSENT or not (call.valid or self._invalid):
            return False
        if call.op in (Op.STEP, Op.RENDER) and state is State.FRESH and not self._invalid:
            return False
        if call.op is Op.RENDER:
            return getattr(self.envs[call.env], "render_mode", None) is not None
        if call.op in (Op.PICKLE, Op.COPY):
            beside = call.value is None or self.state(call.value) in (State.ABSENT, State.CLOSED)
            return state is not State.CLOSED and beside
        return True

    def _is_lenient(self, call: Call) -> bool:
        """Whether any answer to *call* is right, an exception too, as long as there is one."""
        state = self.state(call.env)
        after_the_end = state is State.CLOSED and call.op not in (Op.CLOSE, Op.MAKE)
        outside = (call.op is Op.STEP and state is not State.READY) or (call.op is Op.RENDER and state is State.FRESH)
        refused = call.op in (Op.PICKLE, Op.COPY) or (call.op is Op.CLOSE and call.env in self._copied)
        return not call.valid or after_the_end or outside or refused or call.env in self._spoilt

    def play(self, call: Call, number: int = 0) -> Answer | None:
        """Make *call*, which is the one with this *number*. Raises ``FoundError`` when its answer is wrong."""
        lenient, self.raised = self._is_lenient(call), False
        try:
            answer = self._operations[call.op](call, number)
        except BaseException as error:  # an env may raise anything
            if isinstance(error, FoundError) and not lenient:
                raise
            if not lenient and not is_api_error(error):
                raise FoundError(exception(error, call, number)) from None
            if call.op in (Op.RESET, Op.STEP) and self.state(call.env) not in (State.ABSENT, State.CLOSED):
                self.states[call.env] = State.FRESH
            self.raised = not isinstance(error, FoundError)
            return None
        if not call.valid:
            self._spoilt.add(call.env)
        elif call.op in (Op.MAKE, Op.RESET):
            self._spoilt.discard(call.env)
        if answer is not None and self._checked and not lenient:
            self._check(call, answer, number)
        return answer

    def _check(self, call: Call, answer: Answer, number: int) -> None:
        observation, reward, _ = answer
        space = getattr(self.envs[call.env], "observation_space", None)
        finding = wrong_answer(space, observation, reward, call, number) or self._overwritten(call, number)
        self._watched.append((call, number, observation, copied(observation)))
        if finding:
            raise FoundError(finding)

    def _overwritten(self, call: Call, number: int) -> Finding | None:
        for earlier, since, observation, kept in reversed(self._watched):
            if not same(observation, kept):
                ago = "the call before" if since == number - 1 else f"{number - since} calls before"
                text = f"{call.name} overwrote the observation that {earlier.name}, {ago}, had returned"
                return Finding(Kind.ALIAS, "observation", f"{text}: {change(observation, kept)}", number, since=since)
        return None

    def _forget(self, env: int) -> None:
        """What the env has returned may lie in memory that it has given back."""
        kept = [entry for entry in self._watched if entry[0].env != env]
        self._watched.clear()
        self._watched.extend(kept)

    def _make(self, call: Call, number: int) -> None:
        self.envs[call.env] = adapt(self._make_env())
        self.states[call.env] = State.FRESH

    def _reset(self, call: Call, number: int) -> Answer:
        seed, options = call.value
        answer = self.envs[call.env].reset(seed=seed, options=options)
        if wrong := misshapen(answer, call, number):
            raise FoundError(wrong)
        if self.state(call.env) is not State.CLOSED:
            self.states[call.env] = State.READY
        return answer[0], 0.0, False

    def _step(self, call: Call, number: int) -> Answer:
        answer = self.envs[call.env].step(call.value)
        if wrong := misshapen(answer, call, number):
            raise FoundError(wrong)
        observation, reward, terminated, truncated, _ = answer
        over = bool(terminated or truncated)
        if over and self.state(call.env) is State.READY:
            self.states[call.env] = State.DONE
        return observation, reward, over

    def _render(self, call: Call, number: int) -> None:
        self.envs[call.env].render()

    def _close(self, call: Call, number: int) -> None:
        self._forget(call.env)
        self.envs[call.env].close()
        self.states[call.env] = State.CLOSED

    def _drop(self, call: Call, number: int) -> None:
        self._forget(call.env)
        del self.envs[call.env]
        self.states[call.env] = State.ABSENT
        gc.collect()

    def _duplicate(self, call: Call, number: int) -> None:
        """Gymnasium's ``EzPickle`` makes a new env, so a duplicate needs a reset."""
        env = self.envs[call.env]
        original = env.env if isinstance(env, Adapter) else env
        duplicate = copy.deepcopy(original) if call.op is Op.COPY else pickle.loads(pickle.dumps(original))
        place = call.env if call.value is None else call.value
        self._forget(place)
        self.envs[place] = adapt(duplicate)
        self.states[place] = State.FRESH
        self._copied |= {call.env, place}


def is_api_error(error: BaseException) -> bool:
    """Whether Gymnasium itself complains, or something is not installed."""
    own = any(base.__module__.startswith("gymnasium.error") for base in type(error).__mro__)
    return own or isinstance(error, ImportError)


def exception(error: BaseException, call: Call, number: int) -> Finding:
    """The finding of an exception that *call* must not raise."""
    frames = [
        Frame(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)
    ]
    place = next((frame for frame in reversed(frames) if frame.is_users), frames[-1])
    words = traceback.format_exception_only(type(error), error)[-1].strip()
    theirs = [*takewhile(lambda frame: not package_path(frame.file), reversed(frames))]
    stack = render_frames("stack of the call, newest first", theirs)
    detail = f"{type(error).__name__} in {place.function}"
    return Finding(Kind.EXCEPTION, detail, f"{call.name} raised {words}", number, stack)


RAISED = 1 << 62
"""Added to a call's entry in the journal when it has raised an exception that is allowed."""


def play_all(
    make_env: Callable[[], Any], calls: Sequence[Call], cells: Any, *, invalid: bool, checked: bool
) -> Finding | None:
    """Play *calls* up to the first finding. Each that is made has its number, from 1, in the journal."""
    player, made = Player(make_env, invalid=invalid, checked=checked), 0
    for number, call in enumerate(calls):
        if player.allows(call):
            cells[made] = number + 1
            try:
                player.play(call, made)
            except FoundError as found:
                return found.finding
            if player.raised:
                cells[made] |= RAISED
            made += 1
    return None


Answers = list[tuple[int, dict[str, str]]]
"""For each call of one env that had an answer, its number and the parts of the answer as text."""


def trajectory(make_env: Callable[[], Any], calls: Sequence[Call], cells: Any, seconds: float) -> Answers:
    """The answers to *calls* on the first env, as many as come in time. Steps after the end of an episode are left
    out."""
    player, answers = Player(make_env), list[tuple[int, dict[str, str]]]()
    deadline = time.monotonic() + seconds
    for number, call in enumerate(calls):
        if number > 2 and time.monotonic() > deadline:
            break
        if not player.allows(call) or (call.op is Op.STEP and player.state(call.env) is not State.READY):
            continue
        cells[number] = number + 1
        try:
            answer = player.play(call, number)
        except FoundError:
            return answers
        if answer is not None and call.env == 0:
            parts = {**dict(fields(answer[1], "reward")), "end of the episode": str(answer[2])}
            answers.append((number, {**dict(fields(answer[0])), **parts}))
    return answers

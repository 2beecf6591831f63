"""Plays calls in forked processes, and says what they bring to light."""

from __future__ import annotations

import importlib
import pickle
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from pytest_rlstability.kits.fuzz.adapters import Adapter, adapt
from pytest_rlstability.kits.fuzz.calls import Call, Finding, Kind, Op
from pytest_rlstability.kits.fuzz.forks import Ended, Forks
from pytest_rlstability.kits.fuzz.player import RAISED, play_all
from pytest_rlstability.model.stack_dump import ThreadStack, render_frames
from pytest_rlstability.model.units import format_duration
from pytest_rlstability.model.user_code import package_path

_NO_THREAD = ThreadStack("none", True, ())
MakeEnv = Callable[[], Any]


class CannotFuzzError(Exception):
    """There is nothing to drive: the env cannot be made, or has no action space."""


@dataclass(frozen=True)
class Settings:
    """How to search. A call that takes longer than *stall_after* counts as one that never returns."""

    seconds: float = 120.0
    seed: int = 0
    invalid: bool = False
    stall_after: float = 10.0
    shrink_seconds: float = 60.0


@dataclass(frozen=True)
class Played:
    """What came of some calls: the *finding*, if any, the *calls* that were made, and which of them, by number, have
    *raised* an exception that is allowed."""

    finding: Finding | None
    calls: tuple[Call, ...]
    raised: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Case:
    """A finding with the calls that lead to it. It was seen in *seen* of *tries* replays. The attempt that found it is
    made again from its *seed*; *journal* is what it did. Of a fault that comes with repetition, the calls from number
    *lap_start* on are the lap, and *per_lap* the bytes that one keeps."""

    finding: Finding
    played: Played
    seed: int
    seen: int = 1
    tries: int = 1
    journal: tuple[Call, ...] = ()
    lap_start: int = 0
    per_lap: float = 0.0
    hash_seeds: tuple[int, int] = (0, 0)

    @property
    def calls(self) -> tuple[Call, ...]:
        return self.played.calls


@dataclass(frozen=True)
class Probe:
    """What the first fork learns of the env."""

    action_space: Any
    adapter: str
    modules: tuple[str, ...]


class Laboratory:
    """The env under test, the settings, and the forks in which it is driven."""

    def __init__(self, make_env: MakeEnv, settings: Settings) -> None:
        self.make_env = make_env
        self.settings = settings
        self.forks = Forks()
        self.probe = probe(self.forks, make_env, settings.stall_after)

    def close(self) -> None:
        self.forks.close()

    def play(self, calls: Sequence[Call], stall_after: float | None = None) -> Played:
        """Play *calls* with exact checks."""
        limit, cells, invalid = stall_after or self.settings.stall_after, self.forks.cells, self.settings.invalid
        ended = self.forks.run(lambda: play_all(self.make_env, calls, cells, invalid=invalid), limit)
        made = [calls[(code & ~RAISED) - 1] for code in ended.codes]
        raised = frozenset(number for number, code in enumerate(ended.codes) if code & RAISED)
        finding = death(ended, made[-1], limit) if ended.died else ended.result
        return Played(finding and replace(finding, at=len(made) - 1), tuple(made), raised)


def death(ended: Ended, call: Call, limit: float) -> Finding:
    """The finding of a fork that died or was stuck in *call*."""
    threads = (thread for thread in ended.stack.threads if thread.current or ended.stalled)
    frames = [*takewhile(lambda frame: not package_path(frame.file), next(threads, _NO_THREAD).frames)]
    place = next((frame for frame in frames if frame.is_users), None)
    where = f" ({place.file}:{place.line} in {place.function})" if place else ""
    name = f"{call.op.name.lower()}()"
    stack, output = render_frames("stack of the call, newest first", frames), ended.output
    if ended.stalled:
        text = f"{name} did not return within {format_duration(limit)}{where}"
        return Finding(Kind.STALL, name, text, 0, stack, output)
    how = ended.signal or f"exit status {ended.exit_code}"
    return Finding(Kind.CRASH, f"{how} in {name}", f"{how} in {name}{where}", 0, stack, output)


def probe(forks: Forks, make_env: MakeEnv, stall_after: float) -> Probe:
    """Make one env in a fork, and import here what that imported there, so that every fork has it."""

    def look() -> Probe:
        before = set(sys.modules)
        env = make_env()
        driven = adapt(env)
        kind = type(driven).__name__ if isinstance(driven, Adapter) else ""
        space = driven.action_space
        pickle.dumps(space)
        return Probe(space, kind, tuple(name for name in sys.modules if name not in before))

    ended = forks.run(lambda: _tried(look), max(stall_after, 60.0))
    if ended.died:
        raise CannotFuzzError(f"making an env ends the process: {death(ended, Call(Op.MAKE), stall_after).text}")
    if isinstance(ended.result, str):
        raise CannotFuzzError(f"making an env raises\n{ended.result}")
    for name in ended.result.modules:
        try:
            importlib.import_module(name)
        except Exception:  # a part that only its package can import
            continue
    found: Probe = ended.result
    return found


def _tried(work: Callable[[], Any]) -> Any:
    """What *work* returns, or the traceback of what it raises."""
    try:
        return work()
    except (Exception, SystemExit):
        return traceback.format_exc()

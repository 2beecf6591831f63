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
from pytest_rlstability.kits.fuzz.calls import Call, Finding, Kind, Op, Played, Settings
from pytest_rlstability.kits.fuzz.forks import Ended, Forks
from pytest_rlstability.kits.fuzz.player import RAISED, play_all
from pytest_rlstability.model.stack_dump import ThreadStack, render_frames
from pytest_rlstability.model.units import format_duration
from pytest_rlstability.model.user_code import package_path

_NO_THREAD = ThreadStack("none", True, ())
_TO_MAKE_ONE = 60.0
"""Seconds that the first env may take at least: it imports its libraries."""


class CannotFuzzError(Exception):
    """There is nothing to drive: the env cannot be made, or has no action space."""


@dataclass(frozen=True)
class Probe:
    """What the first fork learns of the env. *adapter* is the name of its class, empty where none is needed."""

    action_space: Any
    adapter: str
    renders: bool
    modules: tuple[str, ...]


class Laboratory:
    """The env under test, the settings, and the forks in which it is driven."""

    def __init__(self, make_env: Callable[[], Any], settings: Settings) -> None:
        self.make_env = make_env
        self.settings = settings
        self.forks = Forks()
        self.probe = self._probe()

    def close(self) -> None:
        self.forks.close()

    def play(self, calls: Sequence[Call], stall_after: float | None = None, *, checked: bool = True) -> Played:
        """Play *calls*, with exact checks of the answers if they are *checked*."""
        limit, cells, invalid = stall_after or self.settings.stall_after, self.forks.cells, self.settings.invalid
        ended = self.forks.run(lambda: play_all(self.make_env, calls, cells, invalid=invalid, checked=checked), limit)
        made = [calls[(code & ~RAISED) - 1] for code in ended.codes]
        raised = frozenset(number for number, code in enumerate(ended.codes) if code & RAISED)
        finding = death(ended, made[-1], limit) if ended.died else ended.result
        return Played(finding and replace(finding, at=len(made) - 1), tuple(made), raised)

    def _probe(self) -> Probe:
        """Make one env in a fork, and import here what that imported there, so that every fork has it."""
        limit = max(self.settings.stall_after, _TO_MAKE_ONE)
        ended = self.forks.run(lambda: _looked_at(self.make_env), limit)
        if ended.died:
            raise CannotFuzzError(f"making an env ends the process: {death(ended, Call(Op.MAKE), limit).text}")
        if isinstance(ended.result, str):
            raise CannotFuzzError(f"making an env raises\n{ended.result}")
        probe: Probe = ended.result
        for name in probe.modules:
            try:
                importlib.import_module(name)
            except Exception:  # a part that only its package can import
                continue
        return probe


def _looked_at(make_env: Callable[[], Any]) -> Probe | str:
    """What is to know of the env, or the traceback of what it raises."""
    try:
        before = set(sys.modules)
        env = adapt(make_env())
        kind = type(env).__name__ if isinstance(env, Adapter) else ""
        renders = getattr(env, "render_mode", None) is not None
        probe = Probe(env.action_space, kind, renders, tuple(name for name in sys.modules if name not in before))
        pickle.dumps(probe)
        return probe
    except BaseException:
        return traceback.format_exc()


def death(ended: Ended, call: Call, limit: float) -> Finding:
    """The finding of a fork that died or was stuck in *call*."""
    threads = (thread for thread in ended.stack.threads if thread.current or ended.stalled)
    frames = [*takewhile(lambda frame: not package_path(frame.file), next(threads, _NO_THREAD).frames)]
    place = next((frame for frame in frames if frame.is_users), None)
    where = f" ({place.file}:{place.line} in {place.function})" if place else ""
    stack, output = render_frames("stack of the call, newest first", frames), ended.output
    if ended.stalled:
        text = f"{call.name} did not return within {format_duration(limit)}{where}"
        return Finding(Kind.STALL, call.name, text, 0, stack, output)
    how = ended.signal or f"exit status {ended.exit_code}"
    return Finding(Kind.CRASH, f"{how} in {call.name}", f"{how} in {call.name}{where}", 0, stack, output)

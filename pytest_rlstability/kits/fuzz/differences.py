"""The same seed and actions must give the same answers: in another interpreter, after an earlier episode, and beside
another env."""

from __future__ import annotations

import os
import pickle
import random
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from pytest_rlstability.kits.fuzz.answers import first_difference
from pytest_rlstability.kits.fuzz.calls import Call, Finding, Kind, Op, Played
from pytest_rlstability.kits.fuzz.forks import Forks
from pytest_rlstability.kits.fuzz.player import Answers, trajectory
from pytest_rlstability.osinfo.helper_process import HelperProcess, module_command
from pytest_rlstability.osinfo.process_control import die_with_parent

_TO_END = 3.0
_SLOWEST = 20.0
"""Seconds that one call may take."""


class Mirror:
    """``Mirror("my_envs:make_env", 7).play(calls)`` gives the answers of an interpreter with hash seed 7, whose global
    random numbers start from 7 too. Raises ``OSError`` or ``EOFError`` when it cannot be had."""

    def __init__(self, target: str, seed: int) -> None:
        self.seed = seed
        command = module_command(__name__, target, str(seed))
        self._process = HelperProcess(
            command, environment={"PYTHONHASHSEED": str(seed)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def play(self, calls: Sequence[Call], seconds: float) -> Answers:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        pickle.dump((calls, seconds), stdin)
        stdin.flush()
        answers: Answers = pickle.load(stdout)
        return answers

    def close(self) -> None:
        """It ends by itself, and removes its files, when its input ends."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._process.ended_within(_TO_END)
        self._process.end()


def in_fork(forks: Forks, make_env: Callable[[], Any], calls: Sequence[Call], seconds: float, seed: int = 0) -> Answers:
    """The answers of so many *seconds* in a fork whose global random numbers start from *seed*; none if it dies, which
    a walk will find."""

    def play() -> Answers:
        random.seed(seed)
        np.random.seed(seed)
        return trajectory(make_env, calls, forks.cells, seconds)

    return forks.run(play, _SLOWEST).result or []


def last_start(calls: Sequence[Call]) -> int:
    """The number of the last reset with a seed on the first env."""
    starts = (call.op is Op.RESET and call.env == 0 and call.value[0] is not None for call in calls)
    return max((number for number, starts in enumerate(starts) if starts), default=len(calls))


def alone(calls: Sequence[Call]) -> tuple[Call, ...]:
    """What the first env does from its last reset with a seed on, on an env of its own."""
    return (Call(Op.MAKE), *(call for call in calls[last_start(calls) :] if call.env == 0))


def beside_another(calls: Sequence[Call]) -> list[Call]:
    """The last episode of *calls*, and between its calls those of the first one on another env."""
    start = last_start(calls)
    own, others = [calls[0], *calls[start:]], [Call(call.op, 1, call.value) for call in calls[:start]]
    return [call for pair in zip(own, others, strict=False) for call in pair] + own[len(others) :]


def compare(calls: Sequence[Call], one: Answers, other: Answers, where: str = "in another process") -> Played:
    """The first answer in which two plays of *calls* differ."""
    for (number, first), (_, second) in zip(one, other, strict=False):
        if difference := first_difference(first, second):
            name = difference.split(":")[0].split("[")[0]
            text = f"the same seed and actions gave another {difference}, {where}, at call {number + 1}"
            finding = Finding(Kind.DIFFERS, f"{name} {where}", f"{text}, {calls[number].name}", number)
            return Played(finding, tuple(calls[: number + 1]))
    return Played(None, tuple(calls))


def seeded_calls(actions: Sequence[Any], options: Any, rng: np.random.Generator, length: int) -> list[Call]:
    """A make, and two episodes that begin with a seed."""
    calls = [Call(Op.MAKE)]
    for steps in (length, length // 2):
        calls.append(Call(Op.RESET, 0, (int(rng.integers(2**31)), options)))
        calls += [Call(Op.STEP, 0, actions[int(rng.integers(len(actions)))]) for _ in range(steps)]
    return calls


def find(target: str) -> Callable[[], Any]:
    """The callable that ``module:name`` or ``/path/file.py:name`` stands for."""
    where, _, names = target.rpartition(":")
    if where.endswith(".py"):
        made: Callable[[], Any] = runpy.run_path(where, run_name="mirrored")[names]
        return made
    value: Any = import_module(where)
    for name in names.split("."):
        value = getattr(value, name)
    return value  # type: ignore[no-any-return]


def main(arguments: Sequence[str]) -> None:
    """The mirror's own process."""
    die_with_parent()
    target, seed = arguments[0], int(arguments[1])
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    make_env, forks = find(target), Forks()
    while True:
        try:
            calls, seconds = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        pickle.dump(in_fork(forks, make_env, calls, seconds, seed), output)
        output.flush()
    forks.close()

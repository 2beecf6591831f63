"""A fresh interpreter that plays calls, to compare their answers with those of another: other hashes, other chance."""

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

from pytest_rlstability.kits.fuzz.calls import Call, Finding, Kind, Op
from pytest_rlstability.kits.fuzz.forks import Forks
from pytest_rlstability.kits.fuzz.laboratory import Played
from pytest_rlstability.kits.fuzz.player import trajectory
from pytest_rlstability.osinfo.helper_process import HelperProcess, module_command
from pytest_rlstability.osinfo.process_control import die_with_parent

Trajectory = list[tuple[int, int, str, bool]]
_FIELDS = ("observation", "reward", "end of the episode")
_TO_END = 3.0
_SLOWEST = 20.0
"""Seconds that one call may take in a mirror."""


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

    def play(self, calls: Sequence[Call]) -> Trajectory:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        pickle.dump(calls, stdin)
        stdin.flush()
        answers: Trajectory = pickle.load(stdout)
        return answers

    def close(self) -> None:
        """It ends by itself, and removes its files, when its input ends."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._process.ended_within(_TO_END)
        self._process.end()


def compare(calls: Sequence[Call], one: Trajectory, other: Trajectory) -> Played:
    """The first answer in which two plays of the same calls differ."""
    for first, second in zip(one, other, strict=False):
        if first != second:
            number = first[0]
            pairs = zip(_FIELDS, first[1:], second[1:], strict=True)
            field, before, now = next((pair for pair in pairs if pair[1] != pair[2]), ("number of answers", 0, 0))
            values = f": {before} and {now}" if field == "reward" else ""
            text = f"the same seed and actions gave another {field} in another process, at call {number + 1}"
            text += f", {calls[number].op.name.lower()}(){values}"
            return Played(Finding(Kind.DIFFERS, field, text, number), tuple(calls[: number + 1]))
    return Played(None, tuple(calls))


def seeded_calls(actions: Sequence[Any], rng: np.random.Generator) -> list[Call]:
    """A make, and two episodes that begin with a seed."""
    calls = [Call(Op.MAKE)]
    for length in (60, 30):
        calls.append(Call(Op.RESET, 0, (int(rng.integers(2**31)), None)))
        calls += [Call(Op.STEP, 0, actions[int(rng.integers(len(actions)))]) for _ in range(length)]
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
            calls = pickle.load(sys.stdin.buffer)
        except EOFError:
            break

        def play(calls: Sequence[Call] = calls) -> Trajectory:
            random.seed(seed)
            np.random.seed(seed)
            return trajectory(make_env, calls, forks.cells)

        pickle.dump(forks.run(play, _SLOWEST).result or [], output)
        output.flush()
    forks.close()

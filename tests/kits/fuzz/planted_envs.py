"""Envs with one planted fault each, and some without any."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Innocent(gymnasium.Env):
    """Counts its steps; episodes have no end."""

    observation_space = Box(-10, 10, (3,), np.float32)
    action_space = Discrete(6)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.last, self.steps = None, 0
        return self.look(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.happen(action)
        self.last = action
        return self.look(), 0.0, False, False, {}

    def look(self) -> Any:
        return np.full(3, min(self.steps, 9), np.float32)

    def happen(self, action: Any) -> None:
        pass


def InnocentClassic() -> Any:  # noqa: N802
    return gymnasium.make("CartPole-v1")


class CrashOnPair(Innocent):
    def happen(self, action: Any) -> None:
        if self.last == 4 and action == 2:
            os.kill(os.getpid(), 11)


class CrashOnThirdReset(Innocent):
    resets = 0

    def reset(self, **how: Any) -> Any:
        self.resets += 1
        if self.resets == 3:
            os.abort()
        return super().reset(**how)


class CrashAtStep1000(Innocent):
    def happen(self, action: Any) -> None:
        if self.steps == 1000:
            os.abort()


class CrashOnSecondClose(Innocent):
    closed = False

    def close(self) -> None:
        if self.closed:
            os.abort()
        self.closed = True


_alive: list[Any] = []


class CrashWithTwo(Innocent):
    def __init__(self) -> None:
        _alive.append(self)

    def happen(self, action: Any) -> None:
        if len(_alive) > 1:
            os.abort()

    def close(self) -> None:
        if self in _alive:
            _alive.remove(self)


class CrashOnInvalidAction(Innocent):
    def happen(self, action: Any) -> None:
        if not self.action_space.contains(action):
            os.abort()


class RaisesLater(Innocent):
    def happen(self, action: Any) -> None:
        if self.steps > 7 and action == 5:
            raise KeyError("no such body")


class NanLater(Innocent):
    def look(self) -> Any:
        observation = super().look()
        if self.steps == 20:
            observation[1] = np.nan
        return observation


class LeavesItsSpace(Innocent):
    def look(self) -> Any:
        observation = super().look()
        if self.steps == 10:
            observation[1] = 11
        return observation


class ReusesItsBuffer(Innocent):
    def reset(self, **how: Any) -> Any:
        self.buffer = np.zeros(3, np.float32)
        return super().reset(**how)

    def look(self) -> Any:
        self.buffer[:] = self.steps % 9
        return self.buffer


class HangsOnAction(Innocent):
    def happen(self, action: Any) -> None:
        while action == 3:
            pass


def raises() -> Any:
    raise RuntimeError("no display")


_kept: list[Any] = []


class LeaksOnReset(Innocent):
    def reset(self, **how: Any) -> Any:
        _kept.append(bytearray(2000))
        return super().reset(**how)


class LeavesDescriptors(Innocent):
    def __init__(self) -> None:
        self.log = os.open(os.devnull, os.O_WRONLY)


class FollowsSetOrder(Innocent):
    def look(self) -> Any:
        return np.full(3, next(iter({"left", "right", "up", "down", "stay"})) == "left", np.float32) + self.steps % 3


class UsesGlobalNumbers(Innocent):
    def happen(self, action: Any) -> None:
        self.steps += int(np.random.randint(2))

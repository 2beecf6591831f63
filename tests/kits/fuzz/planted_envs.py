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


class KeepsItsWind(Innocent):
    """``reset()`` forgets to reset the wind."""

    wind = 0

    def happen(self, action: Any) -> None:
        self.wind = (self.wind + int(action)) % 7

    def look(self) -> Any:
        return np.full(3, self.wind, np.float32)


class SharesItsWorld(Innocent):
    """All envs move in one world."""

    world = [0]

    def reset(self, **how: Any) -> Any:
        self.world[0] = 0
        return super().reset(**how)

    def happen(self, action: Any) -> None:
        self.world[0] = (self.world[0] + int(action)) % 7

    def look(self) -> Any:
        return np.full(3, self.world[0], np.float32)


class SharesItsHandle(Innocent):
    """A copy frees what the original frees too."""

    def __init__(self) -> None:
        self.handle = ["open"]

    def __deepcopy__(self, memo: Any) -> SharesItsHandle:
        duplicate = type(self)()
        duplicate.handle = self.handle
        return duplicate

    def close(self) -> None:
        handle, self.handle = self.handle, [""]
        if not handle:
            os.abort()
        handle.clear()


class ReusesTwoBuffers(Innocent):
    def __init__(self) -> None:
        self.buffers = [np.zeros(3, np.float32) for _ in range(2)]

    def look(self) -> Any:
        buffer = self.buffers[self.steps % 2]
        buffer[:] = self.steps % 9
        return buffer


class HasNoInfo(Innocent):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], None


class CrashesWhenCollected(Innocent):
    def __del__(self) -> None:
        if getattr(self, "steps", 0) > 1:
            os.abort()


class RaisesAnything(Innocent):
    def happen(self, action: Any) -> None:
        if self.steps == 5:
            raise GeneratorExit("no world")


class LeavesDescriptorsOnReset(Innocent):
    """``close()`` gives them back, until then they grow."""

    def reset(self, **how: Any) -> Any:
        self.__dict__.setdefault("logs", []).append(os.open(os.devnull, os.O_WRONLY))
        return super().reset(**how)

    def close(self) -> None:
        for log in self.__dict__.pop("logs", []):
            os.close(log)


class InnocentNeedsLevel(Innocent):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.level = (options or {})["level"]
        return super().reset(seed=seed)


_cache: dict[int, bytes] = {}


class InnocentCache(Innocent):
    """Fills a cache of 300 entries."""

    def reset(self, **how: Any) -> Any:
        if len(_cache) < 300:
            _cache[len(_cache)] = bytes(700)
        return super().reset(**how)


class Agents:
    """PettingZoo's interface without PettingZoo: the observations of *right* leave their space at step 6."""

    possible_agents = ("left", "right")
    render_mode = None
    fault = True

    def observation_space(self, agent: str) -> Any:
        return Box(0, 5, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def see(self, agent: str) -> Any:
        outside = self.fault and agent == "right" and self.steps >= 6
        return np.full(1, 9 if outside else 1, np.float32)

    def close(self) -> None:
        pass


class LeavesItsSpaceInParallel(Agents):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.steps, self.agents = 0, [*self.possible_agents]
        return {agent: self.see(agent) for agent in self.agents}, {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.steps += 1
        seen, flags = {agent: self.see(agent) for agent in actions}, dict.fromkeys(actions, False)
        return seen, dict.fromkeys(actions, 0.0), flags, flags, {}


class InnocentInParallel(LeavesItsSpaceInParallel):
    fault = False


class LeavesItsSpaceInTurns(Agents):
    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.steps, self.agents, self.agent_selection = 0, [*self.possible_agents], "left"

    def agent_iter(self) -> Any:
        raise NotImplementedError

    def last(self) -> Any:
        return self.see(self.agent_selection), 0.0, False, False, {}

    def step(self, action: Any) -> None:
        self.steps += 1
        self.agent_selection = self.possible_agents[self.steps % 2]


class InnocentInTurns(LeavesItsSpaceInTurns):
    fault = False

"""The worlds of the other examples as Gymnasium envs, each as it was and as it should be.

rlstability fuzz envs:GrazingWalkerEnv --for 30s        (in this directory)
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pyboy

from pytest_rlstability.kits.pyboy.rom import build_rom

EXAMPLES = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(EXAMPLES / "box2d_walker"), str(EXAMPLES / "http_env")]

from client_env import HardenedEnv  # noqa: E402
from game_server import GameServer  # noqa: E402
from walker import GrazingWalker, TidyWalker  # noqa: E402


class GrazingWalkerEnv(gymnasium.Env):
    """Walks (0) or eats (1) in one world that lives as long as the env, and leaves food and terrain in it."""

    observation_space = gymnasium.spaces.Box(-numpy.inf, numpy.inf, (3,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.walker = GrazingWalker()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.walker.reset()
        return self.look(), {}

    def step(self, action: Any) -> Any:
        reward = self.walker.eat() if action == 1 else 0.0
        self.walker.step()
        return self.look(), reward, not self.walker.food, False, {}

    def look(self) -> Any:
        return numpy.array([*self.walker.agent.position, len(self.walker.food)], numpy.float32)


class FreshWalkerEnv(GrazingWalkerEnv):
    """A new world for every episode."""

    def reset(self, **how: Any) -> Any:
        self.walker = TidyWalker()
        return super().reset(**how)


class ViewEnv(gymnasium.Env):
    """Ticks a Game Boy, and gives away its screen buffer as the observation."""

    observation_space = gymnasium.spaces.Box(0, 255, (144, 160, 4), numpy.uint8)
    action_space = gymnasium.spaces.Discrete(3)
    buttons = (None, "a", "right")

    def __init__(self) -> None:
        self.boy = pyboy.PyBoy(io.BytesIO(build_rom()), window="null", sound_emulated=False)
        self.start = io.BytesIO()
        self.boy.save_state(self.start)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.start.seek(0)
        self.boy.load_state(self.start)
        self.boy.tick()
        return self.look(), {}

    def step(self, action: Any) -> Any:
        if self.buttons[action]:
            self.boy.button(self.buttons[action])
        self.boy.tick()
        return self.look(), 0.0, False, False, {}

    def look(self) -> Any:
        return self.boy.screen.ndarray

    def close(self) -> None:
        self.boy.stop(save=False)


class CopyEnv(ViewEnv):
    """The same, with a copy of the screen."""

    def look(self) -> Any:
        return self.boy.screen.ndarray.copy()


class ServedEnv(HardenedEnv):
    """The client with a game server of its own. ``reset()`` does not reset the game: its steps go on counting."""

    def __init__(self) -> None:
        self.server = GameServer()
        self.server.__enter__()
        super().__init__(self.server.host, self.server.port, deadline_seconds=3.0)

    def close(self) -> None:
        super().close()
        self.server.__exit__(None, None, None)


class RestartedEnv(ServedEnv):
    """The same, with a reset that begins a new game."""

    def reset(self, **how: Any) -> Any:
        with self.server.game.lock:
            self.server.game.steps = 0
        return super().reset(**how)

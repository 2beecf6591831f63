"""A Gymnasium env whose every step is a heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium


class HeartbeatWrapper(gymnasium.Wrapper):  # type: ignore[misc]
    """*env*, with a call of *beat* after every ``step`` and ``reset`` that returns.

    One that does not return beats no more, which is what a stall check waits for. The env must live in the test's own
    process: a beat in a worker of a vector env reaches nobody.

    >>> beats = []
    >>> env = HeartbeatWrapper(gymnasium.make("CartPole-v1"), lambda: beats.append(1))
    >>> _ = env.reset(seed=1), env.step(0), env.step(1)
    >>> len(beats)
    3
    """

    def __init__(self, env: Any, beat: Callable[[], object]) -> None:
        super().__init__(env)
        self._beat = beat

    def reset(self, **how: Any) -> Any:
        result = self.env.reset(**how)
        self._beat()
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self._beat()
        return result

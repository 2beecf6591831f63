"""A Gymnasium env whose every step is a heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from pytest_rlstability.child.progress import heartbeat


class HeartbeatWrapper(gymnasium.Wrapper):  # type: ignore[misc]
    """*env*, with a call of *beat* after every ``step`` and ``reset`` that returns.

    A call that does not return makes no beat, and a stall check notices that. The env must be in the test's own
    process: beats in the workers of a vector env are lost.

    >>> beats = []
    >>> env = HeartbeatWrapper(gymnasium.make("CartPole-v1"), lambda: beats.append(1))
    >>> _ = env.reset(seed=1), env.step(0), env.step(1)
    >>> len(beats)
    3
    """

    def __init__(self, env: Any, beat: Callable[[], object] = heartbeat) -> None:
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

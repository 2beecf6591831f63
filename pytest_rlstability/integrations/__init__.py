"""Helpers for Gymnasium and SB3: heartbeats from an env or a model, and a check for envs that reuse a buffer.

``HeartbeatWrapper`` and ``HeartbeatCallback`` take the ``rl_heartbeat`` fixture, or any callable without arguments;
``AliasingWrapper(env)`` fails the test when stored observations share their memory. A library is imported when its
class is used first.

    from pytest_rlstability.integrations import HeartbeatCallback, HeartbeatWrapper

    @pytest.mark.rl_no_stall(after="20s")
    def test_training(rl_heartbeat):
        env = HeartbeatWrapper(gymnasium.make("CartPole-v1"), rl_heartbeat)
        PPO("MlpPolicy", env).learn(10_000, callback=HeartbeatCallback(rl_heartbeat))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_rlstability.integrations.aliasing_wrapper import AliasingWrapper
    from pytest_rlstability.integrations.gymnasium_wrapper import HeartbeatWrapper
    from pytest_rlstability.integrations.sb3_callback import HeartbeatCallback

__all__ = ["AliasingWrapper", "HeartbeatCallback", "HeartbeatWrapper"]

_MODULES = {
    "AliasingWrapper": "aliasing_wrapper",
    "HeartbeatCallback": "sb3_callback",
    "HeartbeatWrapper": "gymnasium_wrapper",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

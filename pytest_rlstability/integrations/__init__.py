"""Heartbeats from a Gymnasium env or an SB3 model.

``HeartbeatWrapper`` and ``HeartbeatCallback`` take the ``rl_heartbeat`` fixture, or any callable without arguments.
Without one they beat for whoever watches the process: ``rlstability run``, or ``pytest --rl-stability``. A library is
imported when its class is used first.

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
    from pytest_rlstability.integrations.gymnasium_wrapper import HeartbeatWrapper
    from pytest_rlstability.integrations.sb3_callback import HeartbeatCallback

__all__ = ["HeartbeatCallback", "HeartbeatWrapper"]

_MODULES = {"HeartbeatCallback": "sb3_callback", "HeartbeatWrapper": "gymnasium_wrapper"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

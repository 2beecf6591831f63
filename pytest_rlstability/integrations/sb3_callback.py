"""A Stable-Baselines3 callback that beats while a model learns."""

from __future__ import annotations

from collections.abc import Callable

from stable_baselines3.common.callbacks import BaseCallback

from pytest_rlstability.child.progress import heartbeat


class HeartbeatCallback(BaseCallback):  # type: ignore[misc]
    """Calls *beat* at every step of the (vector) env, and where a rollout or the training starts and ends.

    Use it where the env itself cannot beat, as in a ``SubprocVecEnv``. There is no beat during a gradient update: the
    limit of ``rl_no_stall`` must be longer than the longest update.
    """

    def __init__(self, beat: Callable[[], object] = heartbeat) -> None:
        super().__init__()
        self._beat = beat

    def _on_training_start(self) -> None:
        self._beat()

    def _on_step(self) -> bool:
        self._beat()
        return True

    _on_rollout_start = _on_rollout_end = _on_training_end = _on_training_start

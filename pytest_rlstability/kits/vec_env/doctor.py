"""What ``rlstability doctor`` tries of vector environments, in a fresh process that may crash."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_rlstability.steps.doctor_step import Stage


def vector_environment(start_method: str, rl_stage: Stage) -> None:
    """Two workers, a few steps, an orderly end."""
    import gymnasium
    from stable_baselines3.common.vec_env import SubprocVecEnv

    with rl_stage("start workers"):
        environments = SubprocVecEnv([partial(gymnasium.make, "CartPole-v1")] * 2, start_method=start_method)
    with rl_stage("reset and step"):
        environments.reset()
        for _ in range(5):
            environments.step([0, 1])
    with rl_stage("close"):
        environments.close()

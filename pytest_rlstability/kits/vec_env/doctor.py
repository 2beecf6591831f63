"""What ``rlstability doctor`` tries of vector environments, in a fresh process that may crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_rlstability.steps.doctor_step import Stage


def _cart_pole() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


def vector_environment(start_method: str, rl_stage: Stage) -> None:
    """Two workers, a few steps, an orderly end."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    with rl_stage("start workers"):
        environments = SubprocVecEnv([_cart_pole, _cart_pole], start_method=start_method)
    with rl_stage("reset and step"):
        environments.reset()
        for _ in range(5):
            environments.step([0, 1])
    with rl_stage("close"):
        environments.close()

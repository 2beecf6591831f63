"""Stable-Baselines3: creating a policy, saving and loading it, one rollout of learning, and vector environments."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from pytest_rlstability.doctor.checks.libraries import Stage

_SMALL = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "device": "cpu", "seed": 0}


def _ppo() -> Any:
    from stable_baselines3 import PPO

    return PPO("MlpPolicy", "CartPole-v1", **_SMALL)


def create_ppo(rl_stage: Stage) -> None:
    with rl_stage("import stable_baselines3"):
        import stable_baselines3  # noqa: F401
    with rl_stage("create model"):
        model = _ppo()
    with rl_stage("predict"):
        model.predict(model.get_env().reset())
    with rl_stage("create convolutional policy"):
        from stable_baselines3.common.envs import FakeImageEnv
        from stable_baselines3.ppo import CnnPolicy

        screen = FakeImageEnv(screen_height=84, screen_width=84, n_channels=3, channel_first=True)
        policy = CnnPolicy(screen.observation_space, screen.action_space, lambda progress: 3e-4)
    with rl_stage("predict from a screen"):
        policy.predict(screen.reset()[0])


def create_maskable(rl_stage: Stage) -> None:
    with rl_stage("import sb3_contrib"):
        from sb3_contrib import MaskablePPO
        from sb3_contrib.common.envs import InvalidActionEnvDiscrete
    with rl_stage("create model"):
        model = MaskablePPO("MlpPolicy", InvalidActionEnvDiscrete(dim=8, n_invalid_actions=4), **_SMALL)
    with rl_stage("learn"):
        model.learn(16)


def save_and_load(rl_stage: Stage) -> None:
    from stable_baselines3 import PPO

    model = _ppo()
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.zip")
        with rl_stage("save"):
            model.save(path)
        with rl_stage("load"):
            loaded = PPO.load(path, device="cpu")
    with rl_stage("predict"):
        observations = model.get_env().reset()
        actions = [each.predict(observations, deterministic=True)[0] for each in (model, loaded)]
        assert (actions[0] == actions[1]).all(), "the loaded model acts differently"


def learn(rl_stage: Stage) -> None:
    with rl_stage("create model"):
        model = _ppo()
    with rl_stage("learn one rollout"):
        model.learn(16)


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

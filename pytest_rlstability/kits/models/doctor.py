"""What ``rlstability doctor`` tries of Stable-Baselines3. Each function runs in a fresh process, and may crash it."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_rlstability.steps.doctor_step import Stage

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
    model = _ppo()
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.zip")
        with rl_stage("save"):
            model.save(path)
        with rl_stage("load"):
            loaded = type(model).load(path, device="cpu")
    with rl_stage("predict"):
        observations = model.get_env().reset()
        actions = [each.predict(observations, deterministic=True)[0] for each in (model, loaded)]
        assert (actions[0] == actions[1]).all(), "the loaded model acts differently"


def learn(rl_stage: Stage) -> None:
    with rl_stage("create model"):
        model = _ppo()
    with rl_stage("learn one rollout"):
        model.learn(16)

"""The wrapper and the callback beat as often as the real libraries make progress, and are free until asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

gymnasium = pytest.importorskip("gymnasium")
stable_baselines3 = pytest.importorskip("stable_baselines3")

from stable_baselines3.common.vec_env import DummyVecEnv  # noqa: E402

from pytest_rlstability import integrations  # noqa: E402


class Counter:
    def __init__(self) -> None:
        self.beats = 0

    def __call__(self) -> None:
        self.beats += 1


def test_every_step_and_reset_beats_once() -> None:
    beat = Counter()
    env = integrations.HeartbeatWrapper(gymnasium.make("CartPole-v1"), beat)
    observation, _ = env.reset(seed=3)
    assert beat.beats == 1
    assert (observation == gymnasium.make("CartPole-v1").reset(seed=3)[0]).all()
    for _ in range(5):
        env.step(env.action_space.sample())
    assert beat.beats == 6
    assert env.unwrapped.spec.id == "CartPole-v1"


def test_a_step_that_fails_does_not_beat() -> None:
    class Failing(gymnasium.Wrapper):  # type: ignore[misc]
        def step(self, action: object) -> object:
            raise RuntimeError("broken physics")

    beat = Counter()
    env = integrations.HeartbeatWrapper(Failing(gymnasium.make("CartPole-v1")), beat)
    env.reset()
    with pytest.raises(RuntimeError, match="broken physics"):
        env.step(0)
    assert beat.beats == 1


def test_a_learning_model_beats_at_every_step() -> None:
    beat = Counter()
    venv = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    model = stable_baselines3.PPO("MlpPolicy", venv, n_steps=16, batch_size=16, n_epochs=1, device="cpu")
    model.learn(64, callback=integrations.HeartbeatCallback(beat))
    steps, rollouts = 64 // 2, 64 // 32
    assert beat.beats == 1 + steps + 2 * rollouts + 1


def test_the_callback_lets_training_go_on_beside_others() -> None:
    beat, seen = Counter(), Counter()
    env = integrations.HeartbeatWrapper(gymnasium.make("CartPole-v1"), seen)
    model = stable_baselines3.DQN("MlpPolicy", env, learning_starts=8, buffer_size=100, device="cpu")
    model.learn(20, callback=[integrations.HeartbeatCallback(beat)])
    assert model.num_timesteps == 20
    assert beat.beats >= 20
    assert seen.beats >= 21


def test_the_package_imports_neither_library() -> None:
    code = """
import sys
import pytest_rlstability.integrations as integrations
assert not {"gymnasium", "stable_baselines3", "torch", "numpy"} & set(sys.modules), "imported too early"
integrations.HeartbeatWrapper
assert "gymnasium" in sys.modules and "stable_baselines3" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'HartbeatWrapper'"):
        _ = integrations.HartbeatWrapper

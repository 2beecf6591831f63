"""The agent of the story: PPO on CartPole, trained for a moment."""

from __future__ import annotations

from collections.abc import Callable

import numpy
from stable_baselines3 import PPO

OBSERVATIONS = numpy.random.default_rng(0).normal(size=(16, 4)).astype("float32")


def linear_schedule(initial: float, minimum: float = 1e-6) -> Callable[[float], float]:
    """The schedule every tutorial shows: a function inside a function. Its bytecode goes into the saved file."""

    def func(progress: float) -> float:
        return max(minimum, progress * initial)

    return func


class LinearSchedule:
    """The same schedule as a class of an importable module: the file holds its name and two numbers."""

    def __init__(self, initial: float, minimum: float = 1e-6) -> None:
        self.initial, self.minimum = initial, minimum

    def __call__(self, progress: float) -> float:
        return max(self.minimum, progress * self.initial)


def train(learning_rate: Callable[[float], float] | float) -> PPO:
    model = PPO(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate=learning_rate,
        n_steps=32,
        batch_size=32,
        n_epochs=1,
        policy_kwargs={"net_arch": [8]},
        seed=0,
        device="cpu",
    )
    return model.learn(64)

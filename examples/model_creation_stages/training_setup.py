"""What happens before the first gradient: data, env, vector env, policy with an extractor of its own, save and load."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

TABLE_BYTES = 64


def load_table(path: Path) -> int | None:
    """The address of a table that a native library keeps, as such libraries hand it out: nothing if there is no file.

    The buffer is kept for the life of the process, as the library would.
    """
    if not path.exists():
        return None
    buffer = ctypes.create_string_buffer(path.read_bytes(), TABLE_BYTES)
    _kept.append(buffer)
    return ctypes.addressof(buffer)


_kept: list[ctypes.Array[ctypes.c_char]] = []


class TableExtractor(BaseFeaturesExtractor):
    """Scales observations by the table at *address*, and never asks whether there is one."""

    def __init__(self, observation_space: gymnasium.spaces.Box, address: int | None) -> None:
        size = int(numpy.prod(observation_space.shape))
        super().__init__(observation_space, features_dim=size)
        table = (ctypes.c_ubyte * size).from_address(self.checked(address))
        self.register_buffer("scale", torch.tensor([1 + byte / 255 for byte in table]))

    def checked(self, address: int | None) -> int:
        return address or 0

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return observations * self.scale


class CheckedTableExtractor(TableExtractor):
    """The same, with the question asked in Python, where the answer is an exception and not a signal."""

    def checked(self, address: int | None) -> int:
        if not address:
            raise FileNotFoundError("the extractor's table was not loaded")
        return address


def make_env() -> Any:
    return gymnasium.make("CartPole-v1")


def make_vec_env() -> VecEnv:
    return SubprocVecEnv([make_env, make_env], start_method="fork")


def make_model(venv: VecEnv, extractor: type[TableExtractor], address: int | None) -> PPO:
    policy = {"features_extractor_class": extractor, "features_extractor_kwargs": {"address": address}}
    return PPO("MlpPolicy", venv, n_steps=16, batch_size=16, n_epochs=1, policy_kwargs=policy, device="cpu", seed=0)

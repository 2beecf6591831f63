"""Real saves of the installed Stable-Baselines3 and sb3-contrib: small networks, made once per session."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import sb3_contrib
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise, VectorizedActionNoise
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

STEPS = 24
OBSERVATIONS: dict[str, Any] = {
    "box": spaces.Box(-1, 1, (3,), numpy.float32),
    "half open box": spaces.Box(numpy.array([-1.0, -numpy.inf]), numpy.array([1.0, numpy.inf]), dtype=numpy.float64),
    "discrete": spaces.Discrete(5),
    "multi discrete": spaces.MultiDiscrete([3, 2]),
    "multi binary": spaces.MultiBinary(4),
    "dict": spaces.Dict({"a": spaces.Box(0, 1, (2,)), "b": spaces.Discrete(3)}),
}
IMAGE = spaces.Box(0, 255, (36, 36, 1), numpy.uint8)
ACTIONS: dict[str, Any] = {
    "choice": spaces.Discrete(3),
    "offset choice": spaces.Discrete(3, start=1),
    "choices": spaces.MultiDiscrete([2, 3]),
    "bits": spaces.MultiBinary(2),
    "continuous": spaces.Box(-1, 1, (2,)),
}


class Env(gymnasium.Env):  # type: ignore[type-arg]
    """Draws observations from the space; every fifth step ends an episode."""

    def __init__(self, observations: Any, actions: Any) -> None:
        self.observation_space, self.action_space, self.steps = observations, actions, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps % 5 == 0, False, {"is_success": True}

    def action_masks(self) -> Any:
        return numpy.ones(int(numpy.sum(getattr(self.action_space, "nvec", getattr(self.action_space, "n", 1)))), bool)


def _on_policy(**more: Any) -> dict[str, Any]:
    return {"n_steps": 16, **more}


def _off_policy(**more: Any) -> dict[str, Any]:
    return {"buffer_size": 64, "learning_starts": 8, "batch_size": 8, **more}


def make(name: str, observations: Any, actions: Any, policy: str = "", **settings: Any) -> Any:
    """The algorithm *name*, trained for a moment."""
    algorithm = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
    if not policy:
        policy = "MultiInputPolicy" if isinstance(observations, spaces.Dict) else "MlpPolicy"
        policy = policy.replace("Policy", "LstmPolicy") if name == "RecurrentPPO" else policy
    kwargs = {"net_arch": [4], **settings.pop("policy_kwargs", {})}
    if name == "ARS":
        kwargs = {} if policy == "LinearPolicy" else kwargs
        model = algorithm(policy, Env(observations, actions), n_delta=2, policy_kwargs=kwargs, device="cpu")
        return learned(model, 40)
    model = algorithm(policy, Env(observations, actions), policy_kwargs=kwargs, seed=0, device="cpu", **settings)
    return learned(model)


def learned(model: Any, steps: int = STEPS) -> Any:
    """*model* after some steps, without the directory that SB3's own logger would leave behind."""
    model.set_logger(Logger(None, []))
    return model.learn(steps)


DISCRETE = {"PPO": _on_policy, "A2C": _on_policy, "TRPO": _on_policy, "RecurrentPPO": _on_policy,
            "MaskablePPO": _on_policy, "DQN": _off_policy, "QRDQN": _off_policy}  # fmt: skip
CONTINUOUS = {"SAC": _off_policy, "TD3": _off_policy, "DDPG": _off_policy, "TQC": _off_policy, "CrossQ": _off_policy,
              "PPO": _on_policy, "A2C": _on_policy, "TRPO": _on_policy, "RecurrentPPO": _on_policy}  # fmt: skip
SMALL_LSTM = {"lstm_hidden_size": 4}


def _grid() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every algorithm on every observation space, and on every action space it takes."""

    def one(name: str, observations: Any, actions: Any, settings: Callable[..., dict[str, Any]]) -> Callable[[], Any]:
        kwargs = {"policy_kwargs": dict(SMALL_LSTM)} if name == "RecurrentPPO" else {}
        return lambda: make(name, observations, actions, **settings(**kwargs))

    for name, settings in DISCRETE.items():
        for space, observations in OBSERVATIONS.items():
            if (name, space) == ("RecurrentPPO", "multi discrete"):  # sb3-contrib cannot make it
                continue
            yield f"{name} on {space}", one(name, observations, ACTIONS["choice"], settings)
    for name, settings in CONTINUOUS.items():
        for space in ("box",) if name == "CrossQ" else ("box", "dict"):
            yield f"{name} on {space}, continuous", one(name, OBSERVATIONS[space], ACTIONS["continuous"], settings)
    for action in ("offset choice", "choices", "bits"):
        for name in ("PPO", "A2C"):
            yield f"{name} with {action}", one(name, OBSERVATIONS["box"], ACTIONS[action], _on_policy)
    yield "ARS", lambda: make("ARS", OBSERVATIONS["box"], ACTIONS["choice"])
    yield "ARS linear", lambda: make("ARS", OBSERVATIONS["box"], ACTIONS["choice"], policy="LinearPolicy")


def _options() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Settings that put more than numbers into the file."""
    box, choice, continuous = OBSERVATIONS["box"], ACTIONS["choice"], ACTIONS["continuous"]
    for activation in ("ReLU", "LeakyReLU", "ELU", "SiLU", "GELU"):
        kwargs = {"activation_fn": getattr(torch.nn, activation)}
        yield f"PPO {activation}", lambda kwargs=kwargs: make("PPO", box, choice, **_on_policy(policy_kwargs=kwargs))
    for optimizer in (torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop, RMSpropTFLike):
        kwargs = {"optimizer_class": optimizer}
        yield (
            f"A2C {optimizer.__name__}",
            lambda kwargs=kwargs: make("A2C", box, choice, **_on_policy(policy_kwargs=kwargs, use_rms_prop=False)),
        )
    mean, sigma = numpy.zeros(2), 0.1 * numpy.ones(2)
    for noise in (
        NormalActionNoise(mean, sigma),
        OrnsteinUhlenbeckActionNoise(mean, sigma),
        VectorizedActionNoise(NormalActionNoise(mean, sigma), 1),
    ):
        yield (
            f"TD3 {type(noise).__name__}",
            lambda noise=noise: make("TD3", box, continuous, **_off_policy(action_noise=noise)),
        )
    yield "PPO gSDE", lambda: make("PPO", box, continuous, **_on_policy(use_sde=True))
    yield "SAC gSDE", lambda: make("SAC", box, continuous, **_off_policy(use_sde=True, train_freq=8))
    yield "SAC fixed entropy", lambda: make("SAC", box, continuous, **_off_policy(ent_coef=0.1))
    yield "TD3 per episode", lambda: make("TD3", box, continuous, **_off_policy(train_freq=(1, "episode")))
    yield "PPO value clip", lambda: make("PPO", box, choice, **_on_policy(clip_range_vf=0.2, target_kl=0.5))
    yield (
        "PPO two nets",
        lambda: make("PPO", box, choice, **_on_policy(policy_kwargs={"net_arch": {"pi": [4], "vf": [4]}})),
    )
    schedule = stable_baselines3.common.utils.LinearSchedule(1e-3, 1e-4, 0.5)
    yield "PPO linear", lambda: make("PPO", box, choice, **_on_policy(learning_rate=schedule, clip_range=schedule))
    for name, settings in (("PPO", _on_policy), ("DQN", _off_policy), ("A2C", _on_policy)):
        yield f"{name} Cnn", lambda name=name, settings=settings: make(name, IMAGE, choice, "CnnPolicy", **settings())
    yield "DQN optimised buffer", lambda: make("DQN", box, choice, **_off_policy(
        optimize_memory_usage=True, replay_buffer_kwargs={"handle_timeout_termination": False}))  # fmt: skip
    yield "HER", her


def her() -> Any:
    from stable_baselines3.common.envs import BitFlippingEnv

    env = BitFlippingEnv(n_bits=3, continuous=True, max_steps=4)
    return learned(stable_baselines3.SAC(
        "MultiInputPolicy", env, replay_buffer_class=stable_baselines3.HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 2, "goal_selection_strategy": "future"},
        policy_kwargs={"net_arch": [4]}, **_off_policy(),
    ))  # fmt: skip


def normalised(observations: str = "box") -> Any:
    env = VecNormalize(DummyVecEnv([lambda: Env(OBSERVATIONS[observations], ACTIONS["choice"])]),
                       norm_obs_keys=["a"] if observations == "dict" else None)  # fmt: skip
    policy = "MultiInputPolicy" if observations == "dict" else "MlpPolicy"
    return learned(stable_baselines3.PPO(policy, env, policy_kwargs={"net_arch": [4]}, **_on_policy()))


ALL: dict[str, Callable[[], Any]] = {**dict(_grid()), **dict(_options()), "PPO normalised": normalised}
QUICK = ("PPO on box", "RecurrentPPO on dict", "MaskablePPO on box", "DQN on box", "SAC on dict, continuous",
         "TD3 OrnsteinUhlenbeckActionNoise", "A2C RMSpropTFLike", "PPO linear", "PPO normalised")  # fmt: skip


def write(name: str, directory: Path) -> Path:
    path = directory / f"{name.replace(' ', '_').replace(',', '')}.zip"
    ALL[name]().save(path)
    return path


def write_others(directory: Path) -> Iterator[Path]:
    """What is saved beside a model: statistics, replay buffers, state dicts."""
    from stable_baselines3.common.save_util import save_to_pkl

    for observations in ("box", "dict"):
        normalised(observations).get_vec_normalize_env().save(path := directory / f"statistics_{observations}.pkl")
        yield path
    for name in ("SAC on box, continuous", "DQN on dict"):
        save_to_pkl(path := directory / f"buffer_{name.split()[0]}.pkl", ALL[name]().replay_buffer)
        yield path
    path = directory / "buffer_HER.pkl"
    model = her()
    model.save_replay_buffer(path)
    yield path
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(network.parameters())
    saved = {"net": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3,
             "history": collections.OrderedDict(loss=[0.5]), "half": torch.ones(2, dtype=torch.bfloat16)}  # fmt: skip
    for legacy in (False, True):
        torch.save(saved, path := directory / f"checkpoint_{legacy}.pt", _use_new_zipfile_serialization=not legacy)
        yield path

"""The round trip with real torch and Stable-Baselines3: every kind of model, and every way to come back different."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")

import gymnasium
import model_parts
import numpy
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from pytest_rlstability.kits.models.roundtrip import RoundTrip, _save, round_trip
from pytest_rlstability.kits.models.targets import Target, variations
from pytest_rlstability.kits.models.worker import stacked

OBSERVATIONS = numpy.random.default_rng(0).normal(size=(8, 4)).astype("float32")
HERE = [Target("this Python")]
ON_POLICY: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 1}
OFF_POLICY: dict[str, Any] = {"buffer_size": 500, "learning_starts": 10}


def small(**more: Any) -> dict[str, Any]:
    """A net of eight; made anew each time, because SB3 writes into the dict it is given."""
    return {"policy_kwargs": {"net_arch": [8], **more}}


def ppo(**changes: Any) -> PPO:
    return PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu", **ON_POLICY, **small(), **changes).learn(64)


class Pictures(gymnasium.Env):  # type: ignore[type-arg]
    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 3), numpy.uint8)
    action_space = gymnasium.spaces.Discrete(2)


def test_a_list_of_images_is_taken_as_a_list_of_vectors_is(tmp_path: Path) -> None:
    seen = [Pictures.observation_space.sample() for _ in range(3)]
    model = PPO(
        "CnnPolicy",
        Pictures(),
        n_steps=8,
        batch_size=8,
        policy_kwargs={"features_extractor_kwargs": {"features_dim": 8}},
    )
    assert _save(model, seen, tmp_path).arrays["predict/actions"].shape == (3,)
    assert _save(ppo(), list(OBSERVATIONS), tmp_path).arrays["predict/actions"].shape == (8,)


def test_lists_of_observations_are_stacked() -> None:
    pair = stacked([{"arm": [1, 2], "eye": numpy.zeros((2, 2))}, {"arm": [3, 4], "eye": numpy.ones((2, 2))}])
    assert pair["arm"].tolist() == [[1, 2], [3, 4]]
    assert pair["eye"].shape == (2, 2, 2)
    assert stacked([torch.zeros(3), torch.ones(3)]).shape == (2, 3)


class WithMasks(gymnasium.Wrapper):  # type: ignore[type-arg]
    def action_masks(self) -> Any:
        return numpy.ones(2, dtype=bool)


def masked() -> Any:
    contrib = pytest.importorskip("sb3_contrib")
    return contrib.MaskablePPO(
        "MlpPolicy", WithMasks(gymnasium.make("CartPole-v1")), seed=0, **ON_POLICY, **small()
    ).learn(64)


class Switches(gymnasium.Env):  # type: ignore[type-arg]
    """Actions that MaskablePPO masks with more than one entry each."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))

    def __init__(self, action_space: Any, mask_length: int) -> None:
        self.action_space, self.mask_length = action_space, mask_length

    def reset(self, **_: Any) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, True, False, {}

    def action_masks(self) -> Any:
        return numpy.ones(self.mask_length, dtype=bool)


def switched(action_space: Any, mask_length: int) -> Any:
    contrib = pytest.importorskip("sb3_contrib")
    env = Switches(action_space, mask_length)
    return contrib.MaskablePPO("MlpPolicy", env, seed=0, **ON_POLICY, **small()).learn(64)


def recurrent() -> Any:
    contrib = pytest.importorskip("sb3_contrib")
    kwargs = {**ON_POLICY, **small(lstm_hidden_size=8)}
    return contrib.RecurrentPPO("MlpLstmPolicy", "CartPole-v1", seed=0, **kwargs).learn(64)


def normalised() -> PPO:
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]), clip_obs=5.0)
    return PPO("MlpPolicy", env, seed=0, device="cpu", **ON_POLICY, **small()).learn(64)


def _schedule(initial: float) -> Callable[[float], float]:
    def func(progress: float) -> float:
        return max(1e-6, progress * initial)

    return func


def with_closure() -> A2C:
    model = A2C("MlpPolicy", "CartPole-v1", learning_rate=_schedule(1e-3), seed=0, device="cpu", **small())
    return model.learn(64)


def with_goals() -> DQN:
    """Dict observations, and a replay buffer that cannot be loaded without the real environment."""
    env = BitFlippingEnv(n_bits=4, continuous=False, max_steps=4)
    return DQN(
        "MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer, seed=0, device="cpu", **OFF_POLICY, **small()
    ).learn(64)


MODELS: dict[str, Callable[[], Any]] = {
    "A2C with a closure": with_closure,
    "SAC": lambda: SAC("MlpPolicy", "Pendulum-v1", seed=0, device="cpu", **OFF_POLICY, **small()).learn(64),
    "MaskablePPO": masked,
    "MaskablePPO on bits": lambda: switched(gymnasium.spaces.MultiBinary(3), 6),
    "MaskablePPO on choices": lambda: switched(gymnasium.spaces.MultiDiscrete([3, 2]), 5),
    "RecurrentPPO": recurrent,
    "PPO on VecNormalize": normalised,
    "DQN with goals": with_goals,
}


OTHERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "VecNormalize statistics": (lambda: normalised().get_vec_normalize_env(), OBSERVATIONS),
    "replay buffer": (lambda: MODELS["SAC"]().replay_buffer, None),
    "torch file": (model_parts.Plain, OBSERVATIONS),
    "state dict": (lambda: model_parts.Plain().state_dict(), None),
}


def _compared(directory: Path) -> set[str]:
    """What kinds of arrays the target handed back."""
    (path,) = directory.glob("target-*/arrays.npz")
    with numpy.load(path) as stored:
        return {name.partition("/")[0] for name in stored.files}


@pytest.mark.slow
def test_models_come_back_as_they_were(tmp_path: Path) -> None:
    models = {name: make() for name, make in MODELS.items()}

    def travel(name: str) -> RoundTrip:
        shape = models[name].observation_space.shape
        directory = tmp_path / name
        directory.mkdir()
        return round_trip(
            models[name],
            OBSERVATIONS[:, : shape[0]] if shape else None,
            directory,
            portable=name != "A2C with a closure",
            targets=HERE,
        )

    # All in one test: two processes at a time spend half as long on importing torch.
    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(models, pool.map(travel, models), strict=True))
    assert {name: result.text() for name, result in results.items() if not result.passed} == {}
    for name, result in results.items():
        compared = _compared(tmp_path / name)
        assert {"parameters", "predict", "schedule", "space", "learned"} <= compared
        assert ("normalisation" in compared) is (name == "PPO on VecNormalize")
        assert result.audit.exit_code == 0
        assert bool(result.audit.code_entries) is (name == "A2C with a closure")


@pytest.mark.slow
def test_other_kinds_come_back_as_they_were(tmp_path: Path) -> None:
    made = {name: make() for name, (make, _) in OTHERS.items()}

    def travel(name: str) -> RoundTrip:
        (tmp_path / name).mkdir()
        return round_trip(made[name], OTHERS[name][1], tmp_path / name, targets=HERE)

    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(made, pool.map(travel, made), strict=True))
    assert {name: result.text() for name, result in results.items() if not result.passed} == {}
    for name, result in results.items():
        assert _compared(tmp_path / name)
        assert result.audit.kind == name.replace("state dict", "torch file")


def test_code_in_the_file_fails_a_portable_model(model_roundtrip: Callable[..., RoundTrip]) -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        model_roundtrip(ppo(learning_rate=_schedule(1e-3)), OBSERVATIONS, pythons=[])
    headline = str(failure.value).splitlines()[0]
    assert "learning_rate (closure _schedule.<locals>.func of test_model_roundtrip)" in headline
    assert 'custom_objects={"learning_rate": _schedule(initial=0.001), "lr_schedule": lambda _: 0.0}' in headline


@pytest.mark.slow
def test_value_that_sb3_replaced_is_named(tmp_path: Path) -> None:
    model = ppo(clip_range=model_parts.FragileSchedule(0.1))
    result = round_trip(model, OBSERVATIONS, tmp_path, targets=HERE)
    assert not result.passed
    assert "clip_range could not be loaded; SB3 put its own default in its place" in result.text()
    assert "schedule/clip_range: 5 of 5 values differ, first at [0]: 0.1 was saved, 0.2 came back" in result.text()


def _variation(condition: str) -> list[Target]:
    """This Python, and the same under *condition*."""
    here, *others = variations(torch.get_num_threads(), has_gpu=False)
    return [here, *(one for one in others if one.name == condition)]


@pytest.mark.slow
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="no AVX to do without")
def test_condition_that_changes_predictions_is_named_alone(tmp_path: Path) -> None:
    result = round_trip(model_parts.SeesCapability(), OBSERVATIONS, tmp_path, targets=_variation("no AVX"))
    failed = [trip for trip in result.trips if not trip.passed]
    assert [trip.target.name for trip in failed] == ["no AVX"]
    assert failed[0].line().startswith("no AVX: predict/output: 16 of 16 values differ, first at [0, 0]: ")
    assert failed[0].outcome.result["machine"]["capability"] == "DEFAULT"


@pytest.mark.slow
def test_training_that_depends_on_the_hash_seed_is_found(tmp_path: Path) -> None:
    model = PPO(
        "MlpPolicy", "CartPole-v1", seed=0, device="cpu", **ON_POLICY, **small(optimizer_class=model_parts.AdamBySet)
    )
    result = round_trip(model, OBSERVATIONS, tmp_path, targets=_variation("other hash seed"))
    assert [trip.target.name for trip in result.trips if not trip.passed] == ["other hash seed"]
    assert "after learning one rollout, learned/" in result.text()


def test_last_digits_may_differ_without_avx(tmp_path: Path) -> None:
    less = [Target("no AVX", False, {"ATEN_CPU_CAPABILITY": "default"})]
    assert round_trip(model_parts.RoundsDifferently(), OBSERVATIONS, tmp_path, targets=less).passed


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_crash_of_a_target_is_the_tests_crash(tmp_path: Path) -> None:
    verdict = round_trip(model_parts.AbortsWhenLoaded(), OBSERVATIONS, tmp_path, targets=HERE).verdict()
    assert verdict is not None
    assert verdict.title == "CRASH: saved model on this Python: SIGABRT"
    assert verdict.facts["signal"] == "SIGABRT"
    assert "in __setstate__" in verdict.text()


def test_what_is_no_model_is_said(model_roundtrip: Callable[..., RoundTrip]) -> None:
    with pytest.raises(TypeError, match="not int"):
        model_roundtrip(3, None)


def test_python_that_is_not_there_is_a_usage_error(model_roundtrip: Callable[..., RoundTrip]) -> None:
    with pytest.raises(pytest.UsageError, match=r"pythons=: no Python answers to '3\.99'"):
        model_roundtrip(model_parts.Plain(), OBSERVATIONS, pythons=["3.99"])

"""What a model is, in arrays and plain facts: taken in the test's process, and again wherever the file is loaded.

The second time it runs in a fresh interpreter that may not have this package, so the file stands alone: the standard
library, numpy, and torch and Stable-Baselines3 where the model needs them.
"""

from __future__ import annotations

import base64
import copy
import importlib.util
import inspect
import io
import json
import operator
import pickle
import platform
import re
import sys
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PROGRESS = (1.0, 0.75, 0.5, 0.25, 0.0)
SCHEDULES = ("learning_rate", "lr_schedule", "clip_range", "clip_range_vf", "exploration_schedule")
"""Attributes of an SB3 model that are, or may be, functions of the remaining progress."""
REBUILT = ("lr_schedule", "exploration_schedule")
"""Those that every ``load()`` makes again from other settings, so that what the file holds is never called."""

_KINDS = {"BaseAlgorithm": "sb3", "VecNormalize": "vec_normalize", "BaseBuffer": "buffer", "Module": "module"}
_ROLLOUT = 32
_BUFFER = 1000
# Differ between a model and its own copy, or are cut down before learning; everything else must be the same.
_VOLATILE = {"start_time", "verbose", "n_envs", "buffer_size", "device", "tensorboard_log", "_num_timesteps_at_start"}
_SUBSTITUTED = re.compile(r"Could not deserialize object (\S+?)\.? Consider")

Facts = dict[str, Any]


def kind_of(model: Any) -> str:
    """``sb3``, ``vec_normalize``, ``buffer``, ``module`` or ``state_dict``, by the names of its classes."""
    for base in type(model).__mro__:
        if base.__name__ in _KINDS:
            return _KINDS[base.__name__]
    if isinstance(model, Mapping):
        return "state_dict"
    raise TypeError(
        f"model_roundtrip takes an SB3 model, a VecNormalize, a replay buffer, a torch module or a state dict,"
        f" not {type(model).__name__}"
    )


def save(model: Any, path: str) -> None:
    """Save *model* to *path* the way its own library does."""
    kind = kind_of(model)
    if kind in ("sb3", "vec_normalize"):
        model.save(path)
    elif kind == "buffer":
        from stable_baselines3.common.save_util import save_to_pkl

        save_to_pkl(path, model)
    else:
        import torch

        torch.save(model, path)


def load(path: str, kind: str, algorithm: str) -> Any:
    """Load *path*; *algorithm* is ``module:class`` of an SB3 model."""
    if kind == "sb3":
        return _algorithm(algorithm).load(path, device="cpu", **_lighter(path, algorithm))
    if kind in ("vec_normalize", "buffer"):
        from stable_baselines3.common.save_util import load_from_pkl

        found = load_from_pkl(path)
        if kind == "vec_normalize":
            found.set_venv(_stub_env(found.observation_space, found.action_space))
        return found
    import torch

    return torch.load(path, map_location="cpu", weights_only=kind != "module")


def snapshot(model: Any, observations: Any, normalisation: Any = None) -> tuple[dict[str, Any], Facts]:
    """Everything that must survive the trip: what *model* and its VecNormalize hold, and ``predict/...``."""
    kind = kind_of(model)
    facts: Facts = {"class": type(model).__name__}
    if kind == "sb3":
        found = _snapshot_sb3(model, observations, facts)
    elif kind == "vec_normalize":
        found, normalisation = {}, model
        if observations is not None:
            found["predict"] = {"normalised": model.normalize_obs(observations)}
    elif kind == "buffer":
        found = {"buffer": vars(model)}
    else:
        found = {"parameters": model.state_dict() if kind == "module" else model}
        if kind == "module" and observations is not None:
            found["predict"] = {"output": _forward(model, observations)}
    if normalisation is not None:
        found["normalisation"] = _statistics(normalisation, facts)
    return dict(_flat(found)), facts


def check_elsewhere(*, path: str, kind: str, **others: Any) -> dict[str, Any] | None:
    """What `check` does or, on a Python without the libraries, the plain values alone; None if there are none."""
    needed = "torch" if kind in ("module", "state_dict") else "stable_baselines3"
    if importlib.util.find_spec(needed) is not None:
        return check(path=path, kind=kind, **others)
    return load_values(path) if kind == "sb3" else None


def check(
    *, path: str, kind: str, algorithm: str, observations: str, arrays: str, statistics: str, draw: int
) -> dict[str, Any]:
    """In the fresh interpreter: load, draw as many observations as *draw* says, predict, call the schedules, learn."""
    import numpy

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        print("loading the file", flush=True)
        model = load(path, kind, algorithm)
    substituted = _SUBSTITUTED.findall("\n".join(str(entry.message) for entry in caught))
    if draw:
        write_observations(draw_observations(model.observation_space, draw), observations)
    normalisation = load(statistics, "vec_normalize", "") if statistics else None
    print("predicting and calling the schedules", flush=True)
    taken, facts = snapshot(model, read_observations(observations), normalisation)
    if kind == "sb3":
        print("learning one rollout", flush=True)
        taken.update(_flat({"learned": _learn(path, algorithm, model)}))
    numpy.savez(arrays, **taken)
    facts["substituted"] = [name for name in substituted if name not in REBUILT]
    facts["machine"] = _machine()
    return facts


def write_observations(observations: Any, path: str) -> None:
    """Put *observations* (an array, a dict of arrays, or nothing) where the fresh interpreter can read them."""
    import numpy

    named = observations if isinstance(observations, Mapping) else {"": observations}
    numpy.savez(path, **{f"observations/{name}": _numpy(one) for name, one in named.items() if one is not None})


def read_observations(path: str) -> Any:
    import numpy

    with numpy.load(path, allow_pickle=False) as stored:
        found = {name.partition("/")[2]: stored[name] for name in stored.files}
    return found.get("", found or None)


def draw_observations(space: Any, count: int) -> Any:
    """*count* observations from *space*, the same everywhere."""
    space = copy.deepcopy(space)
    space.seed(0)
    return stacked([space.sample() for _ in range(count)])


def stacked(observations: Sequence[Any]) -> Any:
    """A list of observations as one array, or as a dict of arrays."""
    import numpy

    if isinstance(observations[0], Mapping):
        return {key: stacked([one[key] for one in observations]) for key in observations[0]}
    return numpy.stack([_numpy(one) for one in observations])


def _algorithm(name: str) -> Any:
    module, _, qualified = name.partition(":")
    return operator.attrgetter(qualified)(importlib.import_module(module))


def _lighter(path: str, algorithm: str) -> dict[str, Any]:
    """A small replay buffer for an off-policy model, and a plain one for a HER buffer, which needs the real goals."""
    if "OffPolicyAlgorithm" not in {base.__name__ for base in _algorithm(algorithm).__mro__}:
        return {}
    with zipfile.ZipFile(path) as archive:
        buffer_class = json.loads(archive.read("data")).get("replay_buffer_class") or {}
    if b"HerReplayBuffer" in base64.b64decode(buffer_class.get(":serialized:", "")):
        return {"buffer_size": _BUFFER, "replay_buffer_class": None, "replay_buffer_kwargs": {}}
    return {"buffer_size": _BUFFER}


def _snapshot_sb3(model: Any, observations: Any, facts: Facts) -> dict[str, Any]:
    variables = model._get_torch_save_params()[1] or []
    schedules = {name: getattr(model, name) for name in SCHEDULES if callable(getattr(model, name, None))}
    spaces = {name: getattr(model, name) for name in ("observation_space", "action_space")}
    bounds = ("low", "high", "nvec", "n", "start")
    found = {
        "parameters": model.get_parameters(),
        "variables": {name: getattr(model, name, None) for name in variables},
        "schedule": {name: [float(one(point)) for point in PROGRESS] for name, one in schedules.items()},
        "space": {name: {bound: getattr(space, bound, None) for bound in bounds} for name, space in spaces.items()},
    }
    facts.update((name, repr(space)) for name, space in spaces.items())
    facts["settings"] = {name: value for name, value in vars(model).items() if _is_setting(name, value)}
    if observations is not None:
        actions, states = model.predict(observations, deterministic=True)
        found["predict"] = {"actions": actions, "states": states, "scores": _scores(model, observations)}
    return found


def _is_setting(name: str, value: Any) -> bool:
    return name not in _VOLATILE and isinstance(value, (bool, int, float, str, type(None)))


def _scores(model: Any, observations: Any) -> dict[str, Any]:
    """What the policy computes on the way to its action: finer than a discrete action, which hides small changes."""
    import torch

    policy = model.policy
    if hasattr(policy, "lstm_actor"):
        return {}
    with torch.no_grad():
        tensors, _ = policy.obs_to_tensor(observations)
        if hasattr(policy, "q_net"):
            return {"q_values": policy.q_net(tensors)}
        if not hasattr(policy, "get_distribution"):
            return {}
        distribution = getattr(policy.get_distribution(tensors), "distribution", None)
        scores = {name: getattr(distribution, name, None) for name in ("logits", "mean", "stddev")}
        return {"values": policy.predict_values(tensors), **scores}


def _statistics(normalisation: Any, facts: Facts) -> dict[str, Any]:
    settings = vars(normalisation).items()
    facts["normalisation"] = {name: value for name, value in settings if _is_setting(name, value) and name[0] != "_"}
    running = {name: getattr(normalisation, name, None) for name in ("obs_rms", "ret_rms")}
    return {
        name: {key: vars(each) for key, each in one.items()} if isinstance(one, Mapping) else vars(one)
        for name, one in running.items()
        if one is not None
    }


def _forward(module: Any, observations: Any) -> Any:
    import torch

    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            return module(torch.as_tensor(observations))
    finally:
        module.train(training)


def _learn(path: str, algorithm: str, loaded: Any) -> Any:
    """The policy's parameters after learning for a moment, on an environment made of the model's spaces."""
    from stable_baselines3.common.logger import Logger

    changes = _lighter(path, algorithm)
    most = {"learning_starts": 8} if changes else {"n_steps": _ROLLOUT}
    for name, value in {**most, "batch_size": _ROLLOUT, "n_epochs": 1}.items():
        if hasattr(loaded, name):
            changes[name] = min(getattr(loaded, name), value)
    env = _stub_env(loaded.observation_space, loaded.action_space)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = _algorithm(algorithm).load(path, env=env, device="cpu", tensorboard_log=None, **changes)
        model.set_random_seed(0)
        model.set_logger(Logger(None, []))  # SB3's own makes a directory that nobody removes
        # Two rollouts in number, so that the first update happens at half the progress and not at its very end.
        no_masks = {"use_masking": False} if "use_masking" in inspect.signature(model.learn).parameters else {}
        model.learn(total_timesteps=2 * changes.get("n_steps", _ROLLOUT), **no_masks)
    return model.policy.state_dict()


def _stub_env(observation_space: Any, action_space: Any) -> Any:
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Stub(gymnasium.Env):  # type: ignore[misc]
        """Draws observations from the space: enough to learn from, and the same everywhere."""

        def __init__(self) -> None:
            self.observation_space, self.action_space = observation_space, action_space
            self.steps = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if seed is not None:
                self.observation_space.seed(seed)
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            self.steps += 1
            done = self.steps % 10 == 0
            return self.observation_space.sample(), float(self.steps % 3), done, False, {}

    return DummyVecEnv([Stub])


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every array and number below *value*, by its path."""
    if isinstance(value, (list, tuple)) and not all(isinstance(one, (int, float, bool)) for one in value):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}/{key}" if prefix else key)
    elif isinstance(value, (list, tuple, bool, int, float)) or hasattr(value, "__array__"):
        array = _numpy(value)
        if array.dtype != object:  # objects have no value that could be compared between processes
            yield prefix, array


def _numpy(value: Any) -> Any:
    import numpy

    if hasattr(value, "detach"):
        value = value.detach().cpu()
        try:
            return value.numpy().copy()
        except TypeError:  # a dtype numpy does not have, such as bfloat16, fits into float32 exactly
            return value.float().numpy()
    return numpy.array(value)


def _machine() -> dict[str, str]:
    """What predictions may depend on: versions, processor and the instructions torch chose."""
    libraries = ("torch", "stable_baselines3", "sb3_contrib", "numpy", "gymnasium")
    torch = sys.modules.get("torch")
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability() if torch is not None else "",
        **{name: str(sys.modules[name].__version__) for name in libraries if name in sys.modules},
    }


class _Unpickler(pickle.Unpickler):
    """Has a stand-in for the schedules of SB3, which call what the user gave, where there is no SB3."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except ImportError:
            if module == "stable_baselines3.common.utils" and name in _STAND_INS:
                return type(name, (), {"__call__": _STAND_INS[name]})
            raise


def _linear(self: Any, progress: float) -> float:
    if 1 - progress > self.end_fraction:
        return float(self.end)
    return float(self.start + (1 - progress) * (self.end - self.start) / self.end_fraction)


_STAND_INS = {
    "FloatSchedule": lambda self, progress: float(self.value_schedule(progress)),
    "ConstantSchedule": lambda self, progress: self.val,
    "LinearSchedule": _linear,
}


def load_values(path: str) -> dict[str, Any]:
    """Load every pickled value in the SB3 zip *path*, and call its schedules: only a call shows that one works."""
    with zipfile.ZipFile(path) as archive:
        data = json.loads(archive.read("data"))
    found: dict[str, dict[str, Any]] = {"values": {}, "errors": {}, "skipped": {}}  # each by attribute
    for attribute, entry in data.items():
        if not isinstance(entry, dict) or ":serialized:" not in entry:
            continue
        try:
            print("loading", attribute, flush=True)
            value = _Unpickler(io.BytesIO(base64.b64decode(entry[":serialized:"]))).load()
            if attribute in SCHEDULES and attribute not in REBUILT and callable(value):
                print("calling", attribute, flush=True)
                found["values"][attribute] = [float(value(point)) for point in PROGRESS]
        except ModuleNotFoundError as error:
            found["skipped"][attribute] = error.name or str(error)
        except Exception as error:
            found["errors"][attribute] = f"{type(error).__name__}: {error}"
    return found

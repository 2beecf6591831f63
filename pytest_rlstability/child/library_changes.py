"""Changes what libraries do, right after they are imported, because a diagnosis wants to know whether that matters.

Vector environments in one process or with one worker, and models that are made instead of loaded.

Needs no pytest, and no library: one that is never imported is not changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from os import O_APPEND, O_CREAT, O_WRONLY, close, write
from os import open as open_descriptor
from types import ModuleType
from typing import Any

VEC_ENV, LOAD = "vector env", "load"
"""What a plain run notes that it used."""
_SB3 = "stable_baselines3.common"
_VECTOR_ENVS = {
    f"{_SB3}.vec_env.subproc_vec_env": ("SubprocVecEnv", f"{_SB3}.vec_env.dummy_vec_env", "DummyVecEnv"),
    "gymnasium.vector.async_vector_env": ("AsyncVectorEnv", "gymnasium.vector.sync_vector_env", "SyncVectorEnv"),
}
_MODELS = f"{_SB3}.base_class"


def change_libraries(asked: Mapping[str, Any]) -> None:
    """Do what is asked for: ``vec_env`` is ``one process`` or ``one worker``, ``model`` is ``new``, and ``note_use`` is
    a file in which the use of either is noted."""
    changes: dict[str, Callable[[ModuleType], None]] = {}
    if "vec_env" in asked or "note_use" in asked:
        changes.update({name: lambda module, name=name: _change_envs(module, name, asked) for name in _VECTOR_ENVS})  # type: ignore[misc]
    if "model" in asked or "note_use" in asked:
        changes[_MODELS] = lambda module: _change_models(module, asked)
    if changes:
        sys.meta_path.insert(0, _AfterImport(changes))


class _AfterImport(MetaPathFinder):
    """Calls a function for each of some modules when it has been imported."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        change = self._changes.pop(name, None)
        spec = None if change is None else find_spec(name)
        if change is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def _change_envs(module: ModuleType, name: str, asked: Mapping[str, Any]) -> None:
    class_name, other_module, other_name = _VECTOR_ENVS[name]
    kind = getattr(module, class_name)
    begin = kind.__init__

    @wraps(begin)
    def changed(self: Any, env_fns: Any, *arguments: Any, **options: Any) -> None:
        _note(asked, VEC_ENV)
        few = [*env_fns][:1] if asked.get("vec_env") == "one worker" else env_fns
        begin(self, few, *arguments, **options)

    def in_one_process(cls: type, env_fns: Any, *arguments: Any, **options: Any) -> Any:
        other = __import__(other_module, fromlist=[other_name])
        return getattr(other, other_name)([*env_fns])

    kind.__init__ = changed
    if asked.get("vec_env") == "one process":
        kind.__new__ = in_one_process


def _change_models(module: ModuleType, asked: Mapping[str, Any]) -> None:
    load = module.BaseAlgorithm.load.__func__

    @wraps(load)
    def changed(cls: Any, path: Any, env: Any = None, device: Any = "auto", *arguments: Any, **options: Any) -> Any:
        _note(asked, LOAD)
        if asked.get("model") != "new" or env is None:
            return load(cls, path, env, device, *arguments, **options)
        return cls(_policy(env), env, device=device)

    module.BaseAlgorithm.load = classmethod(changed)


def _policy(env: Any) -> str:
    space = env.observation_space
    if hasattr(space, "spaces"):
        return "MultiInputPolicy"
    return "CnnPolicy" if len(space.shape) == 3 else "MlpPolicy"


def _note(asked: Mapping[str, Any], word: str) -> None:
    if path := asked.get("note_use"):
        descriptor = open_descriptor(path, O_WRONLY | O_CREAT | O_APPEND, 0o600)
        write(descriptor, f"{word}\n".encode())
        close(descriptor)

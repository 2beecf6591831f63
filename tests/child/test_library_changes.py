"""Vector environments and models, changed as a diagnosis asks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_rlstability.child.changes import CHANGES
from pytest_rlstability.child.script import SITE

ENVS = """
import gymnasium
from gymnasium.vector import AsyncVectorEnv
if __name__ == "__main__":
    envs = AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    print(type(envs).__name__, envs.num_envs, envs.reset(seed=1)[0].shape)
    envs.close()
"""
MODEL = """
import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import SubprocVecEnv
if __name__ == "__main__":
    envs = SubprocVecEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    try:
        print(type(envs).__name__, type(PPO.load("no-such-file", envs)).__name__)
    except FileNotFoundError:
        print("loads")
"""


def run(directory: Path, source: str, **asked: str) -> str:
    (directory / "train.py").write_text(source)
    environment = {**os.environ, CHANGES: json.dumps(asked), "PYTHONPATH": SITE}
    words = [sys.executable, "train.py"]
    result = subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_vector_environments_in_one_process_with_one_worker_and_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    assert run(tmp_path, ENVS, vec_env="one process") == "SyncVectorEnv 2 (2, 4)"
    assert run(tmp_path, ENVS, vec_env="one worker") == "AsyncVectorEnv 1 (1, 4)"
    assert run(tmp_path, ENVS, note_use=str(tmp_path / "used.txt")) == "AsyncVectorEnv 2 (2, 4)"
    assert (tmp_path / "used.txt").read_text() == "vector env\n"


@pytest.mark.slow
def test_models_are_made_instead_of_loaded(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    assert run(tmp_path, MODEL, model="new", vec_env="one process") == "DummyVecEnv PPO"
    assert run(tmp_path, MODEL, note_use=str(tmp_path / "used.txt")) == "loads"
    assert (tmp_path / "used.txt").read_text().splitlines() == ["vector env", "load"]

"""The same set-up with its table, and an extractor that asks for it: every stage is passed.

pytest --rl-stability examples/model_creation_stages/test_model_creation_fixed.py
"""

from __future__ import annotations

import pytest
from stable_baselines3 import PPO
from training_setup import TABLE_BYTES, CheckedTableExtractor, load_table, make_env, make_model, make_vec_env


def test_model_creation(rl_stage, vec_env_guard, tmp_path) -> None:
    with rl_stage("load data"):
        table = tmp_path / "table.bin"
        table.write_bytes(bytes(range(TABLE_BYTES)))
        address = load_table(table)
    with rl_stage("make env"):
        make_env().close()
    with rl_stage("make vector env"):
        venv = vec_env_guard(make_vec_env())
    with rl_stage("create model"):
        model = make_model(venv, CheckedTableExtractor, address)
    with rl_stage("learn"):
        model.learn(64)
    with rl_stage("save and load"):
        model.save(tmp_path / "model.zip")
        loaded = PPO.load(tmp_path / "model.zip", device="cpu")
        observations = venv.reset()
        actions, _ = model.predict(observations, deterministic=True)
        assert (loaded.predict(observations, deterministic=True)[0] == actions).all()


def test_a_missing_table_is_an_exception(rl_stage, vec_env_guard, tmp_path) -> None:
    venv = vec_env_guard(make_vec_env())
    with rl_stage("create model"), pytest.raises(FileNotFoundError, match="table was not loaded"):
        make_model(venv, CheckedTableExtractor, load_table(tmp_path / "table.bin"))

"""Creating a policy kills the process: no traceback, no test report, and in a long script no word of where.

    pytest --rl-stability examples/model_creation_stages/test_model_creation_faulty.py

With stages the report says what was done and where it died, beside the Python stack.
"""

from __future__ import annotations

from training_setup import TableExtractor, load_table, make_env, make_model, make_vec_env


def test_model_creation(rl_stage, vec_env_guard, tmp_path) -> None:
    with rl_stage("load data"):
        address = load_table(tmp_path / "table.bin")  # which nobody wrote
    with rl_stage("make env"):
        make_env().close()
    with rl_stage("make vector env"):
        venv = vec_env_guard(make_vec_env())
    with rl_stage("create model"):
        model = make_model(venv, TableExtractor, address)
    with rl_stage("learn"):
        model.learn(64)

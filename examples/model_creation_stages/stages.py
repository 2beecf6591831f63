"""The same set-up for the doctor, which runs each stage alone in a fresh process and says which one dies:

cd examples/model_creation_stages
rlstability doctor --run stages:load_data stages:environment stages:vector_environment stages:create_model

``training`` is all of it in one process, for stages that need what the ones before have made.
"""

from __future__ import annotations

from pathlib import Path

from training_setup import TableExtractor, load_table, make_env, make_model, make_vec_env

TABLE = Path("table.bin")  # which nobody wrote


def load_data():
    load_table(TABLE)


def environment():
    make_env().close()


def vector_environment():
    make_vec_env().close()


def create_model():
    make_model(make_vec_env(), TableExtractor, load_table(TABLE))


def training(rl_stage):
    with rl_stage("load data"):
        address = load_table(TABLE)
    with rl_stage("make env"):
        make_env().close()
    with rl_stage("make vector env"):
        venv = make_vec_env()
    with rl_stage("create model"):
        model = make_model(venv, TableExtractor, address)
    with rl_stage("learn"):
        model.learn(64)

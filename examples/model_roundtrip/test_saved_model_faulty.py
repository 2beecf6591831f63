"""Story 2, as it happened: trained on one Python, saved, loaded on another, SIGSEGV. Both tests fail, here and now."""

from __future__ import annotations

import sys

from cartpole_agent import OBSERVATIONS, linear_schedule, train

OTHER_PYTHON = "3.12" if sys.version_info[:2] != (3, 12) else "3.13"


def test_saved_agent_is_portable(model_roundtrip, rl_stage):
    with rl_stage("train"):
        model = train(linear_schedule(3e-4))
    with rl_stage("save and load"):
        model_roundtrip(model, OBSERVATIONS)


def test_saved_agent_runs_on_the_other_python(model_roundtrip, rl_stage):
    with rl_stage("train"):
        model = train(linear_schedule(3e-4))
    with rl_stage(f"save and load on {OTHER_PYTHON}"):
        model_roundtrip(model, OBSERVATIONS, pythons=[OTHER_PYTHON])

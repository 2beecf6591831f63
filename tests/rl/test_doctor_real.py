"""``rlstability doctor`` with the real libraries: everything works here, and story 4's table is right."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.doctor.checks.libraries import openmp_family
from pytest_rlstability.steps import Step, run_step

# Looked for and not imported, which takes seconds: the steps do that.
for _module in ("torch", "stable_baselines3", "sb3_contrib", "pyboy", "Box2D", "pygame", "PIL"):
    if importlib.util.find_spec(_module) is None:
        pytest.skip(f"{_module} is not installed", allow_module_level=True)

ROOT = Path(__file__).parents[2]


def doctor(*arguments: str, directory: Path) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "pytest_rlstability", "doctor", "--json", "--step-limit=5min", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=directory, timeout=600)
    return result.returncode, json.loads(result.stdout)


def test_steps_work_here(tmp_path) -> None:
    code, found = doctor("--only", "tensors", "emulator", "physics", "images", directory=tmp_path)
    states = {step["name"]: step["state"] for step in found["steps"]}
    assert set(states.values()) <= {"ok", "not installed"}, found
    assert code == 0
    for name in ("tensor operations", "fork after torch's threads", "PyBoy", "Box2D world", "LunarLander"):
        assert states[name] == "ok"
    assert found["facts"]["fork_after_threads"] in ("hangs", "works")
    assert list(tmp_path.iterdir()) == []


def test_policies_and_imports_work_here(tmp_path) -> None:
    """What the steps of the remaining groups do, in one process: torch takes seconds to import."""
    (tmp_path / "remaining.py").write_text(
        "from pytest_rlstability.doctor.checks import libraries, media, policies\n"
        "def run(rl_stage):\n"
        "    found = libraries.import_in_order(['numpy', 'Box2D', 'pygame', 'torch'], rl_stage)\n"
        "    found |= libraries.import_one('torch')\n"
        "    for check in (policies.create_ppo, policies.create_maskable, policies.save_and_load, policies.learn):\n"
        "        check(rl_stage)\n"
        "    policies.vector_environment('fork', rl_stage)\n"
        "    media.shared_tensors(rl_stage)\n"
        "    media.shared_memory(rl_stage)\n"
        "    return found\n"
    )
    step = Step("remaining", call=f"{tmp_path / 'remaining.py'}:run", timeout=300.0, evidence=True)
    outcome = run_step(step)
    assert outcome.ending == "ok", outcome
    assert {stage.state for stage in outcome.stages} == {"done"}
    assert outcome.result["torch"]["threads"] >= 1
    assert any(openmp_family(path) for path in outcome.result["openmp"])


def test_stages_of_the_example_that_creates_a_model() -> None:
    stages = ["stages:environment", "stages:create_model", "stages:training"]
    code, found = doctor("--run", *stages, directory=ROOT / "examples" / "model_creation_stages")
    assert code == 1
    works, dies, in_one = found["steps"]
    assert [step["name"] for step in found["steps"]] == stages
    assert works["state"] == "ok"
    assert (dies["state"], dies["signal"]) == ("crash", "SIGSEGV")
    assert dies["where"].startswith("training_setup.py:")
    assert [(stage["name"], stage["state"]) for stage in in_one["stages"]] == [
        ("load data", "done"), ("make env", "done"), ("make vector env", "done"), ("create model", "open"),
    ]  # fmt: skip

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


@pytest.mark.slow
def test_steps_work_here(tmp_path) -> None:
    code, found = doctor("--only", "tensors", "emulator", "physics", directory=tmp_path)
    states = {step["name"]: step["state"] for step in found["steps"]}
    assert set(states.values()) <= {"ok", "not installed"}, found
    assert code == 0
    for name in ("tensor operations", "fork after torch's threads", "PyBoy", "Box2D world", "LunarLander"):
        assert states[name] == "ok"
    assert found["facts"]["fork_after_threads"] in ("hangs", "works")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_policies_and_imports_work_here(tmp_path) -> None:
    """What the steps of the remaining groups do, in one process: torch takes seconds to import."""
    (tmp_path / "remaining.py").write_text(
        "from pytest_rlstability.doctor.checks import libraries, tensors\n"
        "from pytest_rlstability.kits.models import doctor as policies\n"
        "from pytest_rlstability.kits.vec_env.doctor import vector_environment\n"
        "def run(rl_stage):\n"
        "    found = libraries.import_in_order(['numpy', 'Box2D', 'pygame', 'torch'], rl_stage)\n"
        "    found |= libraries.import_one('torch')\n"
        "    for check in (policies.create_ppo, policies.create_maskable, policies.save_and_load, policies.learn):\n"
        "        check(rl_stage)\n"
        "    vector_environment('fork', rl_stage)\n"
        "    tensors.shared_tensors(rl_stage)\n"
        "    tensors.shared_memory(rl_stage)\n"
        "    return found\n"
    )
    step = Step("remaining", call=f"{tmp_path / 'remaining.py'}:run", timeout=300.0, evidence=True)
    outcome = run_step(step)
    assert outcome.ending == "ok", outcome
    assert {stage.state for stage in outcome.stages} == {"done"}
    assert any(openmp_family(path) for path in outcome.result["openmp"])

"""The model-creation example: before, the report names the stage it died in; after, it passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3")

EXAMPLE = Path(__file__).parents[2] / "examples" / "model_creation_stages"


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rl-stability", *arguments]
    return subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=300)


def test_before_it_dies_in_a_named_stage() -> None:
    result = run_pytest("test_model_creation_faulty.py")
    assert result.returncode == 1, result.stdout
    assert "CRASH: SIGSEGV" in result.stdout
    assert "create model" in result.stdout
    assert "training_setup.py" in result.stdout
    assert "1 failed" in result.stdout


def test_after_every_stage_is_passed() -> None:
    result = run_pytest("test_model_creation_mended.py")
    assert result.returncode == 0, result.stdout
    assert "2 passed" in result.stdout

"""examples/model_roundtrip: the faulty version fails with the verdicts it promises, the mended one passes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")

from pytest_rlstability.models.interpreters import NoInterpreterError, find_interpreter

EXAMPLE = Path(__file__).parents[2] / "examples" / "model_roundtrip"
OTHER_PYTHON = "3.12" if sys.version_info[:2] != (3, 12) else "3.13"


def run(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra", *options, str(EXAMPLE / name)]
    environment = {**os.environ, "COLUMNS": "400", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=EXAMPLE, env=environment
    )


def test_faulty_names_the_entry_and_shows_the_crash() -> None:
    try:
        find_interpreter(OTHER_PYTHON)
    except NoInterpreterError as error:
        pytest.skip(str(error))
    result = run("test_saved_model_faulty.py")
    assert result.returncode == 1, result.stdout
    assert re.search(
        r"FAILED \S*::test_saved_agent_is_portable - .*the file holds code that only this Python can run:"
        r" learning_rate \(closure linear_schedule.<locals>.func of cartpole_agent\).*"
        r'custom_objects={"learning_rate": linear_schedule\(initial=0.0003, minimum=1e-06\)',
        result.stdout,
    ), result.stdout
    crash = rf"test_saved_agent_runs_on_the_other_python - CRASH: saved model on Python {OTHER_PYTHON}\.\d+: SIG"
    assert re.search(rf"FAILED \S*::{crash}", result.stdout), result.stdout
    assert "2 failed" in result.stdout


def test_mended_passes() -> None:
    """Through the fixture, and so through every variation of this Python."""
    result = run("test_saved_model_mended.py")
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout

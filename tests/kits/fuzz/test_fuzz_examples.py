"""The envs of the examples under ``rlstability fuzz``: what it says about each as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

for library in ("gymnasium", "pyboy", "Box2D", "requests"):
    pytest.importorskip(library)
if not hasattr(os, "fork"):
    pytest.skip("attempts are forked", allow_module_level=True)

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "fuzzing"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("GrazingWalkerEnv", "DIFFERS: the same seed and actions gave another observation[1]"),
        ("ViewEnv", "ALIAS: step() overwrote the observation"),
        ("ServedEnv", "DIFFERS: the same seed and actions gave another observation"),
    ],
)
def test_fault_is_found(env: str, words: str, tmp_path: Path) -> None:
    options = ("--for=60s", "--seed=1", "--shrink-for=5s", "-o", str(tmp_path / "test_found.py"))
    command = [sys.executable, "-m", "pytest_rlstability", "fuzz", f"envs:{env}", *options]
    found = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=240)
    assert found.returncode == 1, found.stdout + found.stderr
    assert words in found.stdout

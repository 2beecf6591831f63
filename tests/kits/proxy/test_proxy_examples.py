"""The game-server example with the checks off: the fixed client passes as an ordinary test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("requests")
pytest.importorskip("gymnasium")

EXAMPLE = Path(__file__).parents[3] / "examples" / "http_env"


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=300)


def test_after_none_does_with_the_checks_off() -> None:
    result = run_pytest("test_http_env_fixed.py", "-k", "through and reset")
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout

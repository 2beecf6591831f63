"""The game-server example does what its files say: before, each test fails in its own way; after, none does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("requests")
pytest.importorskip("gymnasium")

EXAMPLE = Path(__file__).parents[2] / "examples" / "http_env"


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=300)


def test_before_each_fails_in_its_own_way() -> None:
    result = run_pytest("--rl-stability", "test_http_env_faulty.py")
    assert result.returncode == 1, result.stdout
    assert "ChunkedEncodingError" in result.stdout
    assert "Connection reset by peer" in result.stdout
    assert "AssertionError: the client made 20 steps, the server applied 26" in result.stdout
    assert "AssertionError: the game loop stands still" in result.stdout
    assert "test_a_server_that_falls_silent - STALL: " in result.stdout
    assert "4 failed" in result.stdout


def test_after_none_does() -> None:
    result = run_pytest("--rl-stability", "test_http_env_mended.py")
    assert result.returncode == 0, result.stdout
    assert "10 passed" in result.stdout


def test_after_none_does_with_the_checks_off() -> None:
    result = run_pytest("test_http_env_mended.py", "-k", "through and reset")
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout

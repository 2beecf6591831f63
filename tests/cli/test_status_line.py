"""How far a command is: shown in a terminal, rewritten in place, and never in a pipe."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

DOCTOR = [sys.executable, "-m", "pytest_rlstability", "doctor", "--run", "os:getpid", "os:getcwd"]


def test_a_pipe_gets_no_status() -> None:
    result = subprocess.run(DOCTOR, capture_output=True, text=True, timeout=100, check=True)
    assert result.stderr == ""
    assert "2 steps, none failed" in result.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_the_doctor_estimates_at_a_terminal() -> None:
    ours, theirs = os.openpty()
    with subprocess.Popen(DOCTOR, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        printed = process.communicate(timeout=100)[0]
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "step 1 of 2" in shown
    assert " so far, about " in shown
    assert "step" not in printed.partition("2 steps, none failed")[0], "it is cleared before a line is printed"


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_large_model_is_said_to_be_read(tmp_path) -> None:
    large = tmp_path / "model.zip"
    with open(large, "wb") as file:
        file.truncate(60_000_000)
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "pytest_rlstability", "audit", str(large)]
    code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, timeout=100, check=False).returncode
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert code == 2
    assert "reading model.zip, 57.2 MiB" in shown

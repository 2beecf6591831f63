"""Damage in one test, death in another: the one that does it is named, and nobody else."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CORPUS = Path(__file__).parents[2] / "benchmarks" / "blame_corpus"
sys.path.insert(0, str(CORPUS))

from cases import CASES, OPTIONS, VICTIMS, source  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="builds a C library")
STEADY = [case for case in CASES if case != "emulator raced, then collected"]
"""A race does other damage each time; ``benchmarks/blame.py`` counts it."""
QUICK = ("heap overrun", "use after free", "python signal handler", "exit callback that aborts", "memory kept")


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in STEADY]
)
def test_the_culprit_is_named(run_pytest, case):
    run_pytest.write("conftest.py", (CORPUS / "conftest.py").read_text())
    outcome = run_pytest(source(case), "--rl-group=auto", *OPTIONS.get(case, []))
    failed = {name for name, result in outcome.tests.items() if result != "passed"}
    assert "test_culprit" in failed, outcome.text
    assert failed <= {"test_culprit", *VICTIMS}, outcome.text
    if "test_victim" in failed:
        assert "test_it.py::test_culprit does the damage" in outcome.details["test_victim"]
    if outcome.tests["test_culprit"] == "error" and case in QUICK:
        command = shlex.split(re.findall(r"^Reproduce: (.*)$", outcome.details["test_culprit"], re.MULTILINE)[-1])
        again = subprocess.run(command, cwd=run_pytest.path, capture_output=True, text=True, check=False)
        assert again.returncode == 1, again.stdout

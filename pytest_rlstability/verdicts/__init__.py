"""The judges: pure functions from a finished run, or from samples, to a verdict. One file for each word."""

from __future__ import annotations

from pytest_rlstability.model.run import Run
from pytest_rlstability.model.verdict import Verdict
from pytest_rlstability.verdicts.crash import judge_crash
from pytest_rlstability.verdicts.stall import judge_stall


def judge(run: Run) -> Verdict | None:
    """The verdict of this package on *run*; None when the test's own outcome stands."""
    return judge_stall(run) or judge_crash(run)

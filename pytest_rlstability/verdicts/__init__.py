"""Facts of a run in, a verdict out: pure functions, one file each, asked in this order."""

from __future__ import annotations

from collections.abc import Callable

from pytest_rlstability.events import Verdict
from pytest_rlstability.facts import Run
from pytest_rlstability.verdicts.crash import judge_crash
from pytest_rlstability.verdicts.stall import judge_stall

JUDGES: tuple[Callable[[Run], Verdict | None], ...] = (judge_stall, judge_crash)


def judge(run: Run) -> Verdict | None:
    """The first verdict that fits *run*; None when the test's own outcome stands."""
    return next((verdict for judge in JUDGES if (verdict := judge(run)) is not None), None)

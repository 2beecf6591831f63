"""The verdict on a command that ``rlstability run`` watched. An exit status is the script's own affair."""

from __future__ import annotations

from pytest_rlstability.model.run import Run
from pytest_rlstability.model.stack_dump import parse_dump
from pytest_rlstability.model.verdict import Verdict
from pytest_rlstability.verdicts.crash import judge_dead_process, judge_dead_worker
from pytest_rlstability.verdicts.stall import judge_stall


def judge_script(run: Run) -> Verdict | None:
    """CRASH when a signal killed it, or when it failed after one of its workers was killed by one; STALL when it was
    ended because it stood still; otherwise None."""
    status = None if run.ending.exit is None else run.ending.exit.status
    died = status is None or status < 0 or parse_dump(run.ending.dump).signal
    if run.ending.killed is not None or died:
        return judge_stall(run) or judge_dead_process(run)
    return judge_dead_worker(run, f"exit status {status}") if status and run.seen.dead_workers else None

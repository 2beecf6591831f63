"""Runs tests again, one after another in one fresh process, to see whether it dies (see ``session.blame``)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import zip_longest

import pytest

from pytest_rlstability.model.run import Killed
from pytest_rlstability.model.verdict import Verdict, is_out_of_memory
from pytest_rlstability.session.blame import OutOfTimeError
from pytest_rlstability.session.launcher import TestLauncher
from pytest_rlstability.session.scheduler import Place
from pytest_rlstability.session.supervisor import ActiveRun, Supervisor
from pytest_rlstability.session.test_process import TestProcess


class FreshRuns:
    """``run_in_order(items, seconds)``. Nothing of it is reported."""

    def __init__(self, session: pytest.Session, launcher: TestLauncher, supervisor: Supervisor) -> None:
        self._session = session
        self._launcher = launcher
        self._supervisor = supervisor

    def run_in_order(self, items: Sequence[pytest.Item], seconds: float) -> Verdict | None:
        """Run *items* one after another in one fresh process, and judge how it ended (see ``session.blame``)."""
        limit, launcher = _TimeLimit(seconds), self._launcher
        active: ActiveRun | None = None
        failed, self._session.testsfailed = self._session.testsfailed, 0  # --maxfail must not end the runs
        try:
            for item, next_item in zip_longest(items, items[1:]):
                place = Place(next_item, stays=next_item is not None)
                active = launcher.start(item, place) if active is None else launcher.send(active, item, place)
                active.start_watching()
                active.kill_conditions = [*active.kill_conditions, limit]
                self._supervisor.supervise(active)
                verdict = self._death(active)
                if verdict is not None or active.run.ending.exit is not None:
                    return verdict
        finally:
            self._session.testsfailed = failed
            if active is not None:
                launcher.kill(active)
        return None

    def _death(self, active: ActiveRun) -> Verdict | None:
        """How the process of a replayed test died, or ran out of memory; whatever else is to be said of the test."""
        run = active.run
        if run.ending.killed is not None and run.ending.killed.reason == _TimeLimit.REASON:
            raise OutOfTimeError
        verdict: Verdict | None = active.item.ihook.pytest_rlstability_judge(run=run)
        survived = run.ending.exit is None or (run.seen.clean_exit and run.ending.exit.status == 0)
        return verdict if verdict is None or not survived or is_out_of_memory(verdict) else None


class _TimeLimit:
    """A kill condition: no more than so many seconds from now."""

    REASON = "out of time"

    def __init__(self, seconds: float) -> None:
        self.due = time.monotonic() + seconds

    def check(self, process: TestProcess) -> Killed:
        return Killed(self.REASON, "")

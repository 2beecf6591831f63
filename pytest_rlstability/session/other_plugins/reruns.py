"""``--reruns`` of pytest-rerunfailures for a test whose process died: the plugin itself runs in that process."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from pytest_rlstability.compat.plugins import allowed_reruns, rerun_delay
from pytest_rlstability.model.run import Run
from pytest_rlstability.model.verdict import Verdict


class Reruns:
    """Counts the attempts that ended with the death of a process."""

    def __init__(self) -> None:
        self.attempts: dict[pytest.Item, int] = {}

    def wants_another(self, item: pytest.Item, run: Run, verdict: Verdict | None) -> bool:
        """Whether *item*, whose run has ended with *verdict*, is to run again."""
        if verdict is None or run.seen.done is not None:
            return False
        repeated = [report for report in run.seen.reports if report["outcome"] == "rerun"]
        used = self.attempts.get(item, 0) + len(repeated)
        self.attempts[item] = used + 1
        return used < allowed_reruns(item, f"VerdictFailure: {verdict.title}")

    def report(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
        """Report the attempt as one that is repeated, and wait as long as is asked for."""
        for report in reports:
            if report.failed:
                report.outcome = "rerun"  # type: ignore[assignment]
            vars(report)["rerun"] = self.attempts[item] - 1
            item.ihook.pytest_runtest_logreport(report=report)
        time.sleep(rerun_delay(item, self.attempts[item]))

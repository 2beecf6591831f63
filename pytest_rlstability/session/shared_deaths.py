"""Handles the death of a process that several tests shared: finds the test at fault and reports it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from pytest_rlstability.config.options import Settings
from pytest_rlstability.config.reproduce import reproduce_command
from pytest_rlstability.model.events import Busy, Event, Finished
from pytest_rlstability.model.run import Run
from pytest_rlstability.model.units import format_duration
from pytest_rlstability.model.verdict import Verdict
from pytest_rlstability.session.blame import Blame, BlameSearch, RunInOrder
from pytest_rlstability.session.report_replay import finished, late_error, report_error, report_internal_error, warn
from pytest_rlstability.session.supervisor import ActiveRun

_MOST_LEFT = 10
_BLAMES = 5
"""How many times ``rl_blame_budget`` a run may take for all its deaths together."""


class SharedDeaths:
    """One for each run. *report* gives reports and their event to pytest, *emit* shows how far a search is."""

    def __init__(
        self,
        settings: Settings,
        run_in_order: RunInOrder,
        report: Callable[[pytest.Item, list[pytest.TestReport], Finished], None],
        emit: Callable[[Event], None],
    ) -> None:
        self._settings = settings
        self._run_in_order = run_in_order
        self._report = report
        self._emit = emit
        self._blame_left = _BLAMES * settings.blame_budget
        self._said = False

    def what_follows(self, next_item: pytest.Item | None) -> str:
        """Said once a run."""
        if next_item is None or self._said:
            return ""
        self._said = True
        return "\nThe tests after it run in a new process, where wide fixtures are set up again."

    def find_culprit(self, active: ActiveRun, victim: pytest.Item | None, verdict: Verdict) -> Blame:
        """The process that several tests shared has died: whose fault was it?"""
        budget = min(self._settings.blame_budget, self._blame_left)
        if budget <= 0:
            return Blame("The culprit was not searched for: rl_blame_budget is 0, or used up by other deaths.")
        began = time.monotonic()
        try:
            search = BlameSearch(self._run_in_order, budget, say=partial(self._say, active.item.nodeid))
            return search.find(active.earlier, victim, verdict)
        except KeyboardInterrupt:  # what is known is reported first
            return Blame("The search for the culprit was interrupted.", interrupted=True)
        finally:
            self._blame_left -= time.monotonic() - began

    def _say(self, nodeid: str, tried: int, seconds: float) -> None:
        so_far = f"run {tried}, {format_duration(seconds)} of {format_duration(self._settings.blame_budget)}"
        text = f"{nodeid}: its process died, looking for the test that did it: {so_far}"
        self._emit(Busy(test=nodeid, text=text))

    def handle_exit(self, active: ActiveRun) -> None:
        """A process that several tests shared has ended after the last of them."""
        run = active.run
        try:
            if not is_a_result(run):
                return
        except RuntimeError:
            report_internal_error(active.item)
            return
        if run.seen.tear_down_error:
            report_error(active.item, run.seen.tear_down_error, "teardown")
        strays = () if run.ending.exit is None else run.ending.exit.strays
        for what, left in (("left behind", run.seen.resources_left), ("left processes running, now ended", strays)):
            if left:
                more = f" and {len(left) - _MOST_LEFT} more" if len(left) > _MOST_LEFT else ""
                warn(active.item, f"tests that shared a process {what}: {', '.join(left[:_MOST_LEFT])}{more}")
        verdict: Verdict | None = active.item.ihook.pytest_rlstability_judge(run=run)
        if verdict is not None:
            blame = self.find_culprit(active, None, verdict)
            verdict = verdict.with_note(blame.text)
            self.report_culprit(blame.culprit or active.item, blame, run, verdict)

    def report_culprit(self, culprit: pytest.Item, blame: Blame, run: Run, verdict: Verdict) -> None:
        """Fail a test that has been reported as passed: it made the process die later."""
        headline = verdict.headline
        if run.seen.phase != "exit":
            headline = f"makes {run.spec.nodeid} die: {verdict.headline}"
        report = late_error(culprit, run, replace(verdict, headline=headline), self.command(blame))
        self._report(culprit, [report], replace(finished(run, [report]), test=culprit.nodeid))

    def command(self, blame: Blame | None) -> str:
        """What reproduces it: the tests that are needed for it, in their order."""
        if blame is None or not blame.sequence:
            return ""
        *before, last = blame.sequence
        return reproduce_command(last, self._settings, before=before)


def is_a_result(run: Run) -> bool:
    """Whether *run* is to be reported as the test's: not one that ends the session."""
    if run.seen.internal_error:
        raise RuntimeError(f"in the test's process:\n{run.seen.internal_error}")
    return run.seen.session_exit is None and not run.seen.interrupted

"""A leak test or a soak without ``rl_laps`` is repeated whole, and so is every test under ``--rl-leaks``: set-up, call
and tear-down are one lap."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any, Literal

import pytest

from pytest_rlstability.compat.pytest import finalizer_lists, report_sections, run_protocol, tear_down
from pytest_rlstability.leaks import outcome
from pytest_rlstability.leaks.check import LeakCheck
from pytest_rlstability.leaks.soak_check import check_for
from pytest_rlstability.model.channel import channel_of
from pytest_rlstability.model.verdict import Verdict, VerdictFailure

Reports = list[pytest.TestReport]


class Repetition:
    """Runs *item* as often as its leak check needs.

    A lap that does not pass is the last one. A leak makes the report of the call a failure. A test that was not written
    to be repeated has the outcome of its first lap, unless it leaks.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        # With this as the next item, pytest keeps every fixture that is wider than the function.
        self._neighbour = copy.copy(item)
        self._channel = channel_of(item.config)
        self._sections = list(report_sections(item))
        self._properties = list(item.user_properties)
        self._finalizers: list[tuple[list[Any], int]] = []
        self._laps = 0

    def run(self, nextitem: pytest.Item | None) -> Reports:
        """The reports of the last lap, for the caller to log."""
        first = reports = self._lap(self._neighbour)
        if not _passed(reports):
            return self._broken_off(reports, nextitem)
        check = check_for(self._item)  # only now, because the probes are known after the first lap
        try:
            for count in outcome.run(check):
                for _ in range(count):
                    reports = self._lap(self._neighbour)
                    if not _passed(reports):
                        reports = self._ran_out(check, reports)
                        if check.settings.sweep and check.verdict is None:
                            check.unjudged = f"cannot be repeated: lap {self._laps} {_how_it_ended(reports)}"
                            reports = first
                        return self._broken_off(reports, nextitem)
            if check.settings.sweep:
                return self._failed(self._broken_off(first, nextitem), check.verdict)
            return self._concluded(check, nextitem)
        except VerdictFailure as failure:  # a probe beyond its limit, found while sampling
            return self._failed(self._lap(nextitem), failure.verdict)
        finally:
            check.close()

    def _lap(self, nextitem: pytest.Item | None) -> Reports:
        self._laps += 1
        self._channel.lap(self._laps)
        # pytest adds the output and properties of every lap to the item; only those of the last are wanted
        report_sections(self._item)[:] = self._sections
        self._item.user_properties[:] = self._properties
        reports = run_protocol(self._item, nextitem)
        if nextitem is self._neighbour:
            self._drop_finalizers()
        return reports

    def _drop_finalizers(self) -> None:
        """Each lap adds finalizers of its fixtures to the wider fixtures that they used; these have run already."""
        if not self._finalizers:
            self._finalizers = [(kept, len(kept)) for kept in finalizer_lists(self._item)]
        for kept, length in self._finalizers:
            del kept[length:]

    def _concluded(self, check: LeakCheck, nextitem: pytest.Item | None) -> Reports:
        """Run a last lap, with the tear-down that *nextitem* asks for. Its reports stand for all laps."""
        reports = self._lap(nextitem)
        if check.warning:
            outcome.warn(self._item, check.warning)
        return self._failed(reports, check.verdict)

    def _failed(self, reports: Reports, verdict: Verdict | None) -> Reports:
        """*reports* with the call failed by *verdict*, if there is one."""

        def fail() -> None:
            if verdict is not None:
                raise VerdictFailure(verdict)

        return self._replaced(reports, fail, "call")

    def _ran_out(self, check: LeakCheck, reports: Reports) -> Reports:
        """A lap that failed because what leaks is used up (descriptors, stack) fails with the leak."""
        error = getattr(sys, "last_value", None)  # pytest keeps here what a test's body raised
        failed = any(report.when == "call" and report.failed for report in reports)
        if error is None or not outcome.ran_out(error) or not failed:
            return reports
        outcome.conclude_cut_short(check, error)
        return self._failed(reports, check.verdict)

    def _broken_off(self, reports: Reports, nextitem: pytest.Item | None) -> Reports:
        """Tear down what *nextitem* does not need. If that fails, the report of the tear-down says so."""
        return self._replaced(reports, lambda: tear_down(self._item.session, nextitem), "teardown")

    def _replaced(self, reports: Reports, step: Callable[[], None], when: Literal["call", "teardown"]) -> Reports:
        """*reports*; if *step* fails, the one of the phase *when* says so."""
        call = pytest.CallInfo.from_call(step, when=when)
        if call.excinfo is None:
            return reports
        make = self._item.ihook.pytest_runtest_makereport
        return [make(item=self._item, call=call) if report.when == when else report for report in reports]


def _how_it_ended(reports: Reports) -> str:
    report = next(report for report in reports if not report.passed)
    if report.skipped:
        return "was skipped"
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(getattr(crash, "message", report.longreprtext)).strip().partition("\n")[0]
    return f"failed in {report.when}: {message[:120]}"


def _passed(reports: Reports) -> bool:
    return all(report.passed for report in reports)

"""A leak test or a soak that does not lap itself, repeated whole: set-up, call and tear-down are one lap."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from pytest_rlstability.beacon import beacon_of
from pytest_rlstability.events import VerdictFailure
from pytest_rlstability.leaks import outcome
from pytest_rlstability.leaks.check import LeakCheck
from pytest_rlstability.leaks.probes import probes_of
from pytest_rlstability.leaks.settings import leak_settings
from pytest_rlstability.soak.check import check_for

Reports = list[pytest.TestReport]


def run(item: pytest.Item, nextitem: pytest.Item | None) -> Reports:
    """Run *item* as often as its leak check needs and return the reports of its last lap, for the caller to log.

    ``for report in repeat.run(item, nextitem): item.ihook.pytest_runtest_logreport(report=report)``. A lap that does
    not pass ends it with that lap's reports. A leak makes the call's report a failure.
    """
    return _Repetition(item).run(nextitem)


class _Repetition:
    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        # Another item in the same place: everything wider than the function stays set up between laps.
        self._neighbour = copy.copy(item)
        self._beacon = beacon_of(item.config)
        self._sections = list(item._report_sections)
        self._properties = list(item.user_properties)
        self._finalizers: list[tuple[list[Any], int]] = []
        self._laps = 0

    def run(self, nextitem: pytest.Item | None) -> Reports:
        reports = self._lap(self._neighbour)
        if not _passed(reports):
            return self._broken_off(reports, nextitem)
        # after the first lap, because only that tells which probes there are
        probes = probes_of(self._item)
        check = check_for(
            leak_settings(self._item.config, self._item),
            tell=lambda record: self._beacon.say("sample", probes.with_charts(record)),
            extra=probes.watched(),
        )
        try:
            work = outcome.run(check)
            while True:
                try:
                    count = next(work)
                except StopIteration as stop:
                    return self._concluded(stop.value, nextitem)
                for _ in range(count):
                    reports = self._lap(self._neighbour)
                    if not _passed(reports):
                        return self._broken_off(self._ran_out(check, reports), nextitem)
        except VerdictFailure as failure:  # a probe beyond its limit, found while sampling
            reports = self._lap(nextitem)
            return [self._failed(failure) if report.when == "call" else report for report in reports]
        finally:
            check.close()

    def _lap(self, nextitem: pytest.Item | None) -> Reports:
        self._laps += 1
        self._beacon.lap(self._laps)
        # pytest adds every lap's output and properties to the item; only the last lap's are wanted
        self._item._report_sections[:] = self._sections
        self._item.user_properties[:] = self._properties
        reports = runtestprotocol(self._item, log=False, nextitem=nextitem)
        if nextitem is self._neighbour:
            self._drop_finalizers()
        return reports

    def _drop_finalizers(self) -> None:
        """Every lap hangs its finished fixtures on the wider ones they used, for a tear-down that has already been."""
        if not self._finalizers:
            information: Any = getattr(self._item, "_fixtureinfo", None)
            definitions = [one for several in getattr(information, "name2fixturedefs", {}).values() for one in several]
            stack = self._item.session._setupstate.stack
            lists = [*(one._finalizers for one in definitions), *(finalizers for finalizers, _ in stack.values())]
            self._finalizers = [(kept, len(kept)) for kept in lists]
        for kept, length in self._finalizers:
            del kept[length:]

    def _concluded(self, result: outcome.Outcome, nextitem: pytest.Item | None) -> Reports:
        """One lap more, with the tear-down that *nextitem* asks for; its reports stand for all."""
        reports = self._lap(nextitem)
        if result.warning:
            from pytest_rlstability.fixtures.laps import LeakWarning

            self._item.warn(LeakWarning(result.warning))
        if result.verdict is None:
            return reports
        failure = VerdictFailure(result.verdict)
        return [self._failed(failure) if report.when == "call" else report for report in reports]

    def _failed(self, failure: VerdictFailure) -> pytest.TestReport:
        def fail() -> None:
            raise failure

        return self._report(pytest.CallInfo.from_call(fail, when="call"))

    def _ran_out(self, check: LeakCheck, reports: Reports) -> Reports:
        """A lap that failed because there was nothing left of what leaked, descriptors or stack, fails as the leak."""
        error = getattr(sys, "last_value", None)  # where pytest leaves what a test's body raised
        if error is None or not outcome.ran_out(error) or not any(_failed_call(report) for report in reports):
            return reports
        result = outcome.conclude_cut_short(check, error)
        if result.verdict is None:
            return reports
        failure = VerdictFailure(result.verdict)
        return [self._failed(failure) if report.when == "call" else report for report in reports]

    def _broken_off(self, reports: Reports, nextitem: pytest.Item | None) -> Reports:
        """Tear down what *nextitem* does not need; if that fails, the tear-down's report says so."""
        tear_down = self._item.session._setupstate.teardown_exact
        call = pytest.CallInfo.from_call(lambda: tear_down(nextitem), when="teardown")
        if call.excinfo is None:
            return reports
        return [self._report(call) if report.when == "teardown" else report for report in reports]

    def _report(self, call: pytest.CallInfo[None]) -> pytest.TestReport:
        report: pytest.TestReport = self._item.ihook.pytest_runtest_makereport(item=self._item, call=call)
        return report


def _failed_call(report: pytest.TestReport) -> bool:
    return report.when == "call" and report.failed


def _passed(reports: Reports) -> bool:
    return all(report.passed for report in reports)

"""Gives pytest the reports, warnings and properties that a test's process sent, as if the test had run here."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterable
from typing import Literal

import pytest

from pytest_rlstability.child.verdict_report import junit_properties, show_verdict, stability_of
from pytest_rlstability.compat.pytest import JunitLog, expected_failure
from pytest_rlstability.config.options import Settings
from pytest_rlstability.config.reproduce import reproduce_command
from pytest_rlstability.model.events import Finished, Outcome
from pytest_rlstability.model.run import Run
from pytest_rlstability.model.verdict import Location, Verdict, VerdictFailure, Word
from pytest_rlstability.session.restored_reports import restore_report, restore_warning
from pytest_rlstability.verdicts.crash import shared_facts


class RLStabilityWarning(pytest.PytestWarning):
    """Something that a test did, that is not a failure, and that its author wants to know."""


def replay(
    item: pytest.Item, run: Run, verdict: Verdict | None, settings: Settings, command: str = ""
) -> list[pytest.TestReport]:
    """The reports of *run*, with *verdict* in the place of the test's own outcome. The caller logs them; warnings and
    JUnit properties are recorded here."""
    reports = [restore_report(item, data) for data in run.seen.reports]
    reports = _move_verdict_to_call(reports) if verdict is None else _with_verdict(item, run, verdict, reports, command)
    leak_warnings = (one.message for one in run.seen.warnings if one.category[1] == "LeakWarning")
    if undecided := next((text for text in leak_warnings if " undecided: " in text), ""):
        mark_undecided(reports, undecided)
    known = stability_of(reports[-1])
    for report in reports:
        known.update(getattr(report, "rl_stability", {}))
        if report.failed and not _has_verdict(report):
            if memory := run.seen.memory.text():
                report.sections.append((f"Memory until lap {run.seen.lap}", memory))
            known["reproduce"] = reproduce_command(item, settings)
            report.sections.append(("rl-stability", f"Reproduce: {known['reproduce']}"))
    known.update(seed=run.spec.seed, backend=run.spec.backend, own_process=not run.spec.previous_test)
    if "verdict" in known:
        known["verdict"]["facts"] = {**shared_facts(run), **known["verdict"]["facts"]}
    if run.seen.soak is not None:
        known["soak"] = run.seen.soak.to_dict()
    if run.seen.plugins_lost:
        known["plugins_lost"] = sorted(run.seen.plugins_lost)
    if run.seen.resources_left:
        known["resources_left"] = run.seen.resources_left
    reports[-1].user_properties += junit_properties(known)
    _replay_side_effects(item, run)
    return reports


def mark_undecided(reports: Iterable[pytest.TestReport], reason: str) -> None:
    """A check has not reached a verdict: the test has not failed, and is not shown as if it had kept its promise."""
    if (own := _own_call(reports)) is not None:
        stability_of(own)["undecided"] = reason


def _with_verdict(
    item: pytest.Item, run: Run, verdict: Verdict, reports: list[pytest.TestReport], command: str
) -> list[pytest.TestReport]:
    """The test has failed, whatever it reported itself. Every test gets a tear-down report."""
    own = _own_call(reports)
    crash = _failed_report(item, run, verdict, command)
    if own is not None and _hangs_on_its_leak(own, verdict):
        own.sections.insert(0, ("After that the process did not end", crash.longreprtext))
        return reports
    crash.sections = [*(reports[-1].sections if reports else []), *_captured(run)]
    if own is not None and own.failed:
        crash.sections.insert(0, ("Before that the test had failed with", own.longreprtext))
    kept = [report for report in reports if report is not own and not (report.when == "setup" and not report.passed)]
    before = [report for report in kept if report.when != "teardown"]
    after = [report for report in kept if report.when == "teardown"]
    return [*before, crash, *(after or [_copy_passed(crash, "teardown")])]


def _hangs_on_its_leak(own: pytest.TestReport, verdict: Verdict) -> bool:
    """Whether a test that leaks does not end, as one that left sockets of zmq open: the leak comes first."""
    leaks = _has_verdict(own) and own.rl_stability["verdict"]["word"] == Word.LEAK
    return leaks and verdict.word is Word.STALL and verdict.facts.get("phase") == "exit"


def _move_verdict_to_call(reports: list[pytest.TestReport]) -> list[pytest.TestReport]:
    """A verdict reached while a fixture was torn down fails the test, as one reached in its body does."""
    late = next((report for report in reports if report.when != "call" and _has_verdict(report)), None)
    own = _own_call(reports)
    if late is None or late.when != "teardown" or own is None or not own.passed:
        return reports
    late.when = "call"
    late.duration += own.duration
    closing = _copy_passed(late, "teardown")
    return [*(report for report in reports if report not in (own, late)), late, closing]


def _has_verdict(report: pytest.TestReport) -> bool:
    return "verdict" in getattr(report, "rl_stability", {})


def _own_call(reports: Iterable[pytest.TestReport]) -> pytest.TestReport | None:
    """The report of the test's body: not one of its subtests'."""
    own = None
    for report in reports:
        if report.when == "call" and type(report) is pytest.TestReport:
            own = report
    return own


def _failed_report(item: pytest.Item, run: Run, verdict: Verdict, command: str) -> pytest.TestReport:
    """The report of a test that cannot report itself.

    Not made by the ``pytest_runtest_makereport`` hook: other plugins rely there on a set-up that ran in this process.
    Only ``xfail`` is honoured, as pytest does it.
    """

    def fail() -> None:
        raise VerdictFailure(verdict)

    call = pytest.CallInfo.from_call(fail, when="call")
    call.start, call.stop = run.seen.phase_start or run.seen.started, run.ending.time
    call.duration = max(0.0, call.stop - call.start)
    report = pytest.TestReport.from_item_and_call(item, call)
    show_verdict(report, item, verdict, command)
    xfailed = expected_failure(item)
    # A test cannot name a crash as an exception type in advance.
    if xfailed is not None and xfailed.raises is None and not item.config.option.runxfail:
        report.outcome = "skipped"
        report.wasxfail = xfailed.reason
    return report


def _captured(run: Run) -> list[tuple[str, str]]:
    return [
        (f"Captured {name} {run.seen.phase}", text)
        for name, text in (("stdout", run.ending.stdout), ("stderr", run.ending.stderr))
        if text
    ]


def _copy_passed(report: pytest.TestReport, when: str) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=report.nodeid,
        location=report.location,
        keywords=report.keywords,
        outcome="passed",
        longrepr=None,
        when=when,  # type: ignore[arg-type]
        sections=list(report.sections),
        user_properties=list(report.user_properties),
        start=report.stop,
        stop=report.stop,
    )


def _replay_side_effects(item: pytest.Item, run: Run) -> None:
    for recorded in run.seen.warnings:
        _record_warning(item, restore_warning(recorded), recorded.when, recorded.nodeid)
    if run.seen.suite_properties or run.seen.junit_attributes:
        JunitLog(item.config).add(item, run.seen.suite_properties, run.seen.junit_attributes)
    if run.ending.exit is not None and run.ending.exit.strays:
        left = ", ".join(run.ending.exit.strays)
        warn(item, f"{item.nodeid} left processes running, now ended: {left}")


def late_error(item: pytest.Item, run: Run, verdict: Verdict, command: str) -> pytest.TestReport:
    """An error of a test that has been reported already: what it did showed only later."""
    report = _failed_report(item, run, verdict, command)
    report.when, report.outcome = "teardown", "failed"
    stability_of(report)["late"] = True
    report.user_properties += junit_properties(stability_of(report))
    return report


def warn(item: pytest.Item, text: str) -> None:
    """Show *text* in pytest's warnings summary, whatever the warning filters make of warnings."""
    path, line, _ = item.location
    message = warnings.WarningMessage(RLStabilityWarning(text), RLStabilityWarning, path, (line or 0) + 1)
    _record_warning(item, message, "runtest", item.nodeid)


def _record_warning(item: pytest.Item, message: warnings.WarningMessage, when: str, nodeid: str) -> None:
    item.ihook.pytest_warning_recorded.call_historic(
        kwargs={"warning_message": message, "when": when, "nodeid": nodeid, "location": None}
    )


def _reason(reports: list[pytest.TestReport]) -> str:
    """Why a test was skipped, or was expected to fail."""
    skipped = next((report for report in reports if report.skipped), None)
    if skipped is None:
        return ""
    if hasattr(skipped, "wasxfail"):
        return f"expected to fail: {skipped.wasxfail}" if skipped.wasxfail else "expected to fail"
    return str(skipped.longrepr[2]) if isinstance(skipped.longrepr, tuple) else skipped.longreprtext


def _message(reports: list[pytest.TestReport]) -> str:
    """How a test without a verdict failed, in one line: the first line of each error, with the phase if it is not the
    test's body."""
    lines = []
    for report in reports:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else report.longrepr if isinstance(report.longrepr, str) else ""
            first = text.strip().partition("\n")[0]
            lines.append(first if report.when == "call" or not first else f"in {report.when}: {first}")
    return "; ".join(filter(None, dict.fromkeys(lines)))


def finished(run: Run, reports: list[pytest.TestReport]) -> Finished:
    """The event for a test that is over."""
    known = stability_of(reports[-1])
    outcomes = {report.outcome for report in reports}
    failed = "failed" in outcomes
    return Finished(
        test=run.spec.nodeid,
        outcome=Outcome.FAILED if failed else Outcome.SKIPPED if "skipped" in outcomes else Outcome.PASSED,
        duration=run.seconds,
        phases={str(report.when): report.duration for report in reports},
        backend=run.spec.backend,
        seed=run.spec.seed,
        laps=run.seen.lap,
        soak=run.seen.soak,
        peak_memory=run.peak_memory,
        leftovers=run.ending.exit.strays if run.ending.exit else (),
        stages=(*run.seen.stages_done, *run.seen.stages_open),
        reason=_reason(reports),
        undecided="" if failed else known.get("undecided", ""),
        message="" if "verdict" in known else _message(reports),
        location=Location(*known["line"]) if failed and "line" in known else None,
        xfailed=any(report.skipped and hasattr(report, "wasxfail") for report in reports),
        verdict=Verdict.from_dict(known["verdict"]) if "verdict" in known else None,
        reproduce=known.get("reproduce"),
        report="\n\n".join(report.longreprtext for report in reports if report.failed),
        output=dict(reports[-1].sections) if failed else {},
    )


def report_internal_error(item: pytest.Item) -> None:
    """The exception being handled is ours, not the test's: say so, and let the session go on."""
    text = "rl-stability internal error\n\n" + traceback.format_exc()
    kind, error, _ = sys.exc_info()
    text += f"\nThis is a fault of pytest-rlstability, not of the test: {kind.__name__ if kind else ''}: {error}\n"
    report = report_error(item, text, "setup")
    item.ihook.pytest_runtest_logreport(report=_copy_passed(report, "teardown"))


def report_error(item: pytest.Item, text: str, when: Literal["setup", "teardown"]) -> pytest.TestReport:
    """Report an error in the set-up or tear-down of *item*."""
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=text,
        when=when,
    )
    item.ihook.pytest_runtest_logreport(report=report)
    return report

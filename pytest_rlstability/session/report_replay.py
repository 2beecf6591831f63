"""What a test's process reported, told to pytest's own plugins as if it had happened here."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterable

import pytest
from _pytest.runner import CallInfo
from _pytest.skipping import evaluate_xfail_marks

from pytest_rlstability.events import Verdict, VerdictFailure
from pytest_rlstability.facts import Run
from pytest_rlstability.isolation.reporter import revive_report, revive_warning
from pytest_rlstability.options import Settings
from pytest_rlstability.reports.reproduce import reproduce_command
from pytest_rlstability.reports.verdict_report import junit_properties, show_verdict, stability_of
from pytest_rlstability.verdicts.crash import shared_facts


class RLStabilityWarning(pytest.PytestWarning):
    """Something a test did that is not its failure, but that its author wants to know."""


def replay(item: pytest.Item, run: Run, verdict: Verdict | None, settings: Settings) -> list[pytest.TestReport]:
    """The reports of *run*, with *verdict* in the place of the test's own outcome; warnings and the like are told
    at once, the reports are the caller's to log."""
    reports = [revive_report(item, data) for data in run.reports]
    reports = _bring_verdict_home(reports) if verdict is None else _with_verdict(item, run, verdict, reports)
    known = stability_of(reports[-1])
    for report in reports:
        known.update(getattr(report, "rl_stability", {}))
        if report.failed and not _has_verdict(report):
            if memory := run.memory.text():
                report.sections.append((f"Memory until lap {run.lap}", memory))
            known["reproduce"] = reproduce_command(item, settings)
            report.sections.append(("rl-stability", f"Reproduce: {known['reproduce']}"))
    known.update(seed=run.seed, backend=run.backend, own_process=run.exit is not None)
    if "verdict" in known:
        known["verdict"]["facts"] = {**shared_facts(run), **known["verdict"]["facts"]}
    if run.soak is not None:
        known["soak"] = run.soak.to_dict()
    if run.left_behind:
        known["left_behind"] = run.left_behind
    reports[-1].user_properties += junit_properties(known)
    _replay_side_effects(item, run)
    return reports


def _with_verdict(
    item: pytest.Item, run: Run, verdict: Verdict, reports: list[pytest.TestReport]
) -> list[pytest.TestReport]:
    """The test has failed, whatever it had reported of itself; tear-down is closed so that every test has one."""
    own = _own_call(reports)
    crash = _failed_report(item, run, verdict)
    crash.sections = [*(reports[-1].sections if reports else []), *_captured(run)]
    if own is not None and own.failed:
        crash.sections.insert(0, ("Before that the test had failed with", own.longreprtext))
    kept = [report for report in reports if report is not own and not (report.when == "setup" and not report.passed)]
    before = [report for report in kept if report.when != "teardown"]
    after = [report for report in kept if report.when == "teardown"]
    return [*before, crash, *(after or [_copy_passed(crash, "teardown")])]


def _bring_verdict_home(reports: list[pytest.TestReport]) -> list[pytest.TestReport]:
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


def _failed_report(item: pytest.Item, run: Run, verdict: Verdict) -> pytest.TestReport:
    """The report of a test that cannot report itself.

    Not made by the ``pytest_runtest_makereport`` hook: other plugins' parts in it count on a set-up that ran in
    this process. Only the expected failure is honoured, as pytest does it.
    """
    try:
        raise VerdictFailure(verdict)
    except VerdictFailure as failure:
        raised = pytest.ExceptionInfo.from_exception(failure)
    start = run.phase_start or run.started
    duration = max(0.0, run.ended - start)
    call: CallInfo[None] = CallInfo(None, raised, start, run.ended, duration, "call", _ispytest=True)
    report = pytest.TestReport.from_item_and_call(item, call)
    show_verdict(report, item, verdict)
    xfailed = evaluate_xfail_marks(item)
    # A crash is no exception a test could name in advance, so that one expected by its type is not this one.
    if xfailed is not None and xfailed.raises is None and not item.config.option.runxfail:
        report.outcome = "skipped"
        report.wasxfail = xfailed.reason
    return report


def _captured(run: Run) -> list[tuple[str, str]]:
    return [
        (f"Captured {name} {run.phase}", text)
        for name, text in (("stdout", run.stdout), ("stderr", run.stderr))
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
    for record in run.warnings:
        _record_warning(item, revive_warning(record), record["when"], record["nodeid"])
    if run.suite_properties or run.junit_attributes:
        _replay_junit(item, run)
    if run.exit is not None and run.exit.leftovers:
        left = ", ".join(run.exit.leftovers)
        warn(item, f"{item.nodeid} left processes running, now ended: {left}")


def _replay_junit(item: pytest.Item, run: Run) -> None:
    from _pytest.junitxml import xml_key

    log = item.config.stash.get(xml_key, None)
    if log is not None:
        for name, value in run.suite_properties:
            log.add_global_property(name, value)
        log.node_reporter(getattr(item, "id", item.nodeid)).attrs.update(run.junit_attributes)


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


def summary(run: Run, reports: list[pytest.TestReport]) -> dict[str, object]:
    """What the event log says of a finished test."""
    known = stability_of(reports[-1])
    outcome = next((report.outcome for report in reports if report.failed), None)
    return {
        "outcome": outcome or next((report.outcome for report in reports if report.skipped), "passed"),
        "duration": run.ended - run.started,
        "phases": {str(report.when): report.duration for report in reports},
        "backend": run.backend,
        "seed": run.seed,
        "laps": run.lap,
        "soak": None if run.soak is None else run.soak.to_dict(),
        "peak_memory": run.exit.peak if run.exit else 0,
        "leftovers": run.exit.leftovers if run.exit else [],
        "stages": [*run.stages_done, *run.stages_open],
        "reason": _reason(reports),
        "xfailed": any(report.skipped and hasattr(report, "wasxfail") for report in reports),
        "verdict": known.get("verdict"),
        "reproduce": known.get("reproduce"),
        "report": "\n".join(report.longreprtext for report in reports if report.failed),
        "output": dict(reports[-1].sections) if outcome else {},
    }


def report_internal_error(item: pytest.Item) -> None:
    """The exception being handled is ours, not the test's: say so, and let the session go on."""
    text = "rl-stability internal error\n\n" + traceback.format_exc()
    kind, error, _ = sys.exc_info()
    text += f"\nThis is a fault of pytest-rlstability, not of the test: {kind.__name__ if kind else ''}: {error}\n"
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=text,
        when="setup",
    )
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logreport(report=_copy_passed(report, "teardown"))

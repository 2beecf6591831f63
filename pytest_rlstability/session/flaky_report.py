"""Reports the many runs of an ``rl_flaky`` test to pytest as one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import pytest

from pytest_rlstability.child.verdict_report import junit_properties, stability_of
from pytest_rlstability.compat.pytest import expected_failure
from pytest_rlstability.config.options import Settings
from pytest_rlstability.config.reproduce import reproduce_command
from pytest_rlstability.model.messages import WarningRecorded
from pytest_rlstability.model.run import Exit, Run
from pytest_rlstability.session.report_replay import mark_undecided, replay, warn
from pytest_rlstability.session.restored_reports import restore_report
from pytest_rlstability.verdicts.flaky import Trial, Trials, count_line, flaky_verdict

_SHOWN_OUTPUT = 4000
"""Characters of each captured stream that an example shows; the newest."""


def replay_trials(item: pytest.Item, trials: Trials, settings: Settings) -> tuple[Run, list[pytest.TestReport]]:
    """The one run that stands for all of them, and its reports."""
    if trials.stands_aside:
        first = trials.trials[0].run
        return first, replay(item, first, None, settings)
    run = _sum_up(trials, settings)
    if trials.answer == "broken":
        verdict = flaky_verdict(
            trials,
            lambda trial: _example(item, trial),
            lambda seed: reproduce_command(item, replace(settings, seed=seed), "--rl-flaky=once"),
        )
        reports = replay(item, run, verdict, settings)
        _expect(item, trials, reports)
    else:
        reports = replay(item, run, None, settings)
        _show_kept(item, trials, reports)
    known = stability_of(reports[-1])
    known["own_process"] = len(trials.trials)
    _note(reports[-1], trials)
    return run, reports


def _sum_up(trials: Trials, settings: Settings) -> Run:
    """A run with the reports of one that passed (none, when the promise is broken) and what all of them left."""
    runs = [trial.run for trial in trials.trials]
    broken = trials.answer == "broken"
    wanted = "failed" if broken else "passed"
    shown = next(trial.run for trial in trials.trials if trial.outcome == wanted)
    exits = [run.ending.exit for run in runs if run.ending.exit]
    return Run(
        replace(shown.spec, seed=settings.seed),
        replace(
            shown.seen,
            started=runs[0].seen.started,
            phase_start=runs[0].seen.started,
            reports=[] if broken else shown.seen.reports,
            warnings=_once(warning for run in runs for warning in run.seen.warnings),
            suite_properties=list(dict.fromkeys(pair for run in runs for pair in run.seen.suite_properties)),
        ),
        replace(
            shown.ending,
            time=max(run.ending.time for run in runs),
            stdout="",
            stderr="",
            exit=Exit(0, max(exit.peak for exit in exits), next((exit.strays for exit in exits if exit.strays), ())),
        ),
    )


def _once(warnings: Iterable[WarningRecorded]) -> list[WarningRecorded]:
    """The same warning of twenty runs is one warning, whatever numbers it names."""
    seen: dict[tuple[str, str, int], WarningRecorded] = {}
    for warning in warnings:
        seen.setdefault((re.sub(r"\d[\d.,]*", "0", warning.message), warning.filename, warning.lineno), warning)
    return list(seen.values())


def _expect(item: pytest.Item, trials: Trials, reports: list[pytest.TestReport]) -> None:
    """An ``xfail(raises=...)`` names an exception, not a verdict: the runs know whether it was that one."""
    marked = expected_failure(item)
    if marked is None or not trials.failed_as_expected:
        return
    for report in reports:
        if report.failed:
            report.outcome = "skipped"
            report.wasxfail = marked.reason


def _show_kept(item: pytest.Item, trials: Trials, reports: list[pytest.TestReport]) -> None:
    call = next((report for report in reports if report.when == "call"), reports[-1])
    # What the test costs is all of its runs.
    call.duration = max(call.duration, trials.trials[-1].run.ending.time - trials.trials[0].run.seen.started)
    failures = "; ".join(count_line(group) for group in trials.groups())
    counted = trials.kept_text() if trials.answer == "kept" else trials.count_text()
    text = f"rl_flaky {trials.answer}: {counted}{f': {failures}' if failures else ''}"
    call.sections.append(("rl-stability", text))
    if trials.answer == "undecided":
        mark_undecided(reports, text)
        stability_of(reports[-1])["undecided"] = text
        promise = trials.promise
        warn(
            item,
            f"{text}; promised {promise.pass_rate:g}, and max_runs={promise.max_runs} was too few to tell it from "
            f"{trials.test.worse_rate:.2g} at {promise.confidence:g} confidence: a larger max_runs decides",
        )


def _note(report: pytest.TestReport, trials: Trials) -> None:
    """The numbers of the runs as JUnit properties; a verdict has brought its own."""
    if "verdict" not in stability_of(report):
        report.user_properties += junit_properties({"facts": trials.facts()})


def _example(item: pytest.Item, trial: Trial) -> str:
    """All that one failed run said."""
    if trial.verdict is not None:
        streams = [("Captured stdout", trial.run.ending.stdout), ("Captured stderr", trial.run.ending.stderr)]
        return _with_output(trial.verdict.text(), streams)
    for data in trial.run.seen.reports:
        if data["longrepr"] is not None:
            report = restore_report(item, data)
            return _with_output(report.longreprtext, report.sections)
    return ""


def _with_output(text: str, streams: Iterable[tuple[str, str]]) -> str:
    blocks = [f"{title}:\n{output[-_SHOWN_OUTPUT:].rstrip()}" for title, output in streams if output.strip()]
    return "\n\n".join([text.rstrip(), *blocks])

"""The many runs of an ``rl_flaky`` test, told to pytest as one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import pytest
from _pytest.skipping import evaluate_xfail_marks

from pytest_rlstability.facts import Exit, Record, Run
from pytest_rlstability.isolation.reporter import revive_report
from pytest_rlstability.options import Settings
from pytest_rlstability.reports.replay import replay, warn
from pytest_rlstability.reports.reproduce import reproduce_command
from pytest_rlstability.reports.verdict_report import junit_properties, stability_of
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
        _tell_kept(item, trials, reports)
    known = stability_of(reports[-1])
    known["own_process"] = len(trials.trials)
    _note(reports[-1], trials)
    return run, reports


def _sum_up(trials: Trials, settings: Settings) -> Run:
    """A run with the reports of one that passed (none, when the promise is broken) and what all of them left."""
    runs = [trial.run for trial in trials.trials]
    failed = [trial.run for trial in trials.trials if trial.outcome == "failed"]
    passed = [trial.run for trial in trials.trials if trial.outcome == "passed"]
    broken = trials.answer == "broken"
    shown = (failed if broken else passed)[0]
    return replace(
        shown,
        seed=settings.seed,
        started=runs[0].started,
        phase_start=runs[0].started,
        ended=max(run.ended for run in runs),
        reports=[] if broken else shown.reports,
        stdout="",
        stderr="",
        warnings=_once(record for run in runs for record in run.warnings),
        suite_properties=list(dict.fromkeys(pair for run in runs for pair in run.suite_properties)),
        exit=Exit(
            status=0,
            peak=max(run.exit.peak for run in runs if run.exit),
            leftovers=next((run.exit.leftovers for run in runs if run.exit and run.exit.leftovers), []),
        ),
    )


def _once(warnings: Iterable[Record]) -> list[Record]:
    """The same warning of twenty runs is one warning, whatever numbers it names."""
    seen: dict[tuple[str, str, int], Record] = {}
    for record in warnings:
        seen.setdefault((re.sub(r"\d[\d.,]*", "0", record["message"]), record["filename"], record["lineno"]), record)
    return list(seen.values())


def _expect(item: pytest.Item, trials: Trials, reports: list[pytest.TestReport]) -> None:
    """An ``xfail(raises=...)`` names an exception, not a verdict: the runs know whether it was that one."""
    marked = evaluate_xfail_marks(item)
    if marked is None or not trials.failed_as_expected:
        return
    for report in reports:
        if report.failed:
            report.outcome = "skipped"
            report.wasxfail = marked.reason


def _tell_kept(item: pytest.Item, trials: Trials, reports: list[pytest.TestReport]) -> None:
    call = next((report for report in reports if report.when == "call"), reports[-1])
    # What the test costs is all of its runs.
    call.duration = max(call.duration, trials.trials[-1].run.ended - trials.trials[0].run.started)
    failures = "; ".join(count_line(group) for group in trials.groups())
    text = f"rl_flaky {trials.answer}: {trials.count_text()}{f': {failures}' if failures else ''}"
    call.sections.append(("rl-stability", text))
    if trials.answer == "undecided":
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
        streams = [("Captured stdout", trial.run.stdout), ("Captured stderr", trial.run.stderr)]
        return _with_output(trial.verdict.text(), streams)
    for data in trial.run.reports:
        if data["longrepr"] is not None:
            report = revive_report(item, data)
            return _with_output(report.longreprtext, report.sections)
    return ""


def _with_output(text: str, streams: Iterable[tuple[str, str]]) -> str:
    blocks = [f"{title}:\n{output[-_SHOWN_OUTPUT:].rstrip()}" for title, output in streams if output.strip()]
    return "\n\n".join([text.rstrip(), *blocks])

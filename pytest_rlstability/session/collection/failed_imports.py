"""Reports modules that crashed or hung while they were imported, in the process that collects without them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_rlstability.child.unimportable import UNIMPORTABLE
from pytest_rlstability.child.verdict_report import stability_of, verdict_text
from pytest_rlstability.compat.pytest import collect_error, collected_nothing, text_repr
from pytest_rlstability.config.options import settings_of
from pytest_rlstability.config.reproduce import reproduce_command
from pytest_rlstability.model.events import Finished, Outcome
from pytest_rlstability.model.run import Run
from pytest_rlstability.model.verdict import Verdict, plain_values


@dataclass(frozen=True)
class FailedImport:
    """A node that could not be collected, and why. *output* is what was written until then, by stream."""

    nodeid: str
    verdict: Verdict
    seconds: float
    output: Mapping[str, str]

    @classmethod
    def of(cls, run: Run, verdict: Verdict) -> FailedImport:
        written = {"Captured stdout": run.ending.stdout, "Captured stderr": run.ending.stderr}
        output = {title: text for title, text in written.items() if text}
        return cls(run.spec.nodeid, verdict, run.ending.time - run.seen.phase_start, output)

    def to_dict(self) -> dict[str, Any]:
        return dict(plain_values(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FailedImport:
        return cls(**{**data, "verdict": Verdict.from_dict(data["verdict"])})


class FailedImports:
    """A plugin that gives each of these nodes an error instead of collecting it. *failures* has them by node id. Those
    that are *silent* are reported elsewhere."""

    def __init__(
        self, config: pytest.Config, failures: Mapping[str, FailedImport], silent: Collection[str] = ()
    ) -> None:
        self._config = config
        self._failures = failures
        self._silent = silent
        self._reported = 0
        config.stash[UNIMPORTABLE] = tuple(failures)

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        failed = self._failures.get(collector.nodeid or ".")
        if failed is None:
            return None
        if failed.nodeid in self._silent:
            return collected_nothing(collector)
        settings, verdict = settings_of(self._config), failed.verdict
        command = reproduce_command(collector, settings)
        text = verdict_text(verdict, command)
        path, line = collector.nodeid, 1 if verdict.location is None else verdict.location.line
        report = collect_error(collector, text_repr(text, path, line, verdict.title))
        report.sections += failed.output.items()
        bus = self._config.pluginmanager.getplugin("rlstability-event-bus")
        bus.emit(
            Finished(
                test=collector.nodeid,
                outcome=Outcome.FAILED,
                duration=failed.seconds,
                backend="inprocess",
                seed=settings.seed,
                verdict=verdict,
                reproduce=command,
                report=text,
                output=failed.output,
            )
        )
        known = stability_of(report)
        known.update(verdict=verdict.to_dict(), reproduce=command, late=True, events=bus.take_waiting())
        self._reported += 1
        return report

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Let the other tests run, unless there are errors of another kind, at which pytest stops."""
        if session.testsfailed == self._reported:
            self._config.option.continue_on_collection_errors = True

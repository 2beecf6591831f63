"""Where everything said about a run comes together, in the process that shows it (with xdist: the controller)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_rlstability.events import event
from pytest_rlstability.evidence.machine import platform_line, versions_line
from pytest_rlstability.options import settings_of
from pytest_rlstability.reports.registry import Report, open_reports
from pytest_rlstability.reports.terminal import Tally


class Desk:
    """A plugin object. The engine tells it events; it passes them to the reports, and says the closing words.

    In an xdist worker nobody is there to show anything: events wait for the test's last report and travel with it.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tally = Tally()
        self._waiting: list[dict[str, Any]] = []
        worker = getattr(config, "workerinput", None)
        self._is_worker = worker is not None
        self._origin = {"host": socket.gethostname(), "worker": worker["workerid"] if worker else "main"}
        self._reports: list[Report] = [] if self._is_worker else open_reports(config)

    def tell(self, kind: str, test: str = "", **fields: object) -> None:
        """Pass on an event, or keep it for the journey to the controller."""
        told = {**event(kind, test, **fields), **self._origin}
        if self._is_worker:
            self._waiting.append(told)
        else:
            self._hear(told)

    def take_waiting(self) -> list[dict[str, Any]]:
        """The events that have to travel with a report."""
        taken, self._waiting = self._waiting, []
        return taken

    def _hear(self, told: Mapping[str, object]) -> None:
        for report in self._reports:
            report.hear(told)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        if not self._is_worker:
            settings = settings_of(self._config)
            self.tell(
                "session",
                pid=os.getpid(),
                platform=platform_line(),
                versions=versions_line(),
                seed=settings.seed,
                arguments=[str(argument) for argument in self._config.invocation_params.args],
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_worker:
            return
        self._tally.count(report)
        for told in getattr(report, "rl_stability", {}).pop("events", ()):
            self._hear(told)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        for report in self._reports:
            report.close()
        if session.exitstatus == pytest.ExitCode.OK and any(report.trouble for report in self._reports):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for report in self._reports:
            if report.trouble:
                terminalreporter.write_line(f"rl-stability: {report.trouble}", red=True)
        for line in [*(line for report in self._reports for line in report.lines()), *self._tally.left_lines()]:
            terminalreporter.write_line(f"rl-stability: {line}")
        if tally := self._tally.line():
            terminalreporter.write_line(tally)

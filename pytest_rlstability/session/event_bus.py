"""Where everything said about a run comes together, in the process that shows it (with xdist: the controller)."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from pytest_rlstability.events import event
from pytest_rlstability.evidence.machine import platform_line, versions_line
from pytest_rlstability.options import settings_of
from pytest_rlstability.reports.live_line import LiveLine, live_line
from pytest_rlstability.reports.registry import Report, open_reports
from pytest_rlstability.reports.soaks import SoakBook
from pytest_rlstability.reports.terminal import Tally
from pytest_rlstability.reports.worker_line import say_to_controller
from pytest_rlstability.soak.ending import ended_by_sigterm


class Desk:
    """A plugin object. The engine tells it events; it passes them to the reports, and says the closing words.

    In an xdist worker nobody is there to show anything: events go to the controller, at once where the line to it is
    open, else they wait for the test's last report and travel with it.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tally = Tally()
        self._waiting: list[dict[str, Any]] = []
        worker = getattr(config, "workerinput", None)
        self._is_worker = worker is not None
        self.workers: int = worker["workercount"] if worker else 1
        self._origin = {"host": socket.gethostname(), "worker": worker["workerid"] if worker else "main"}
        self._reports: list[Report] = [] if self._is_worker else open_reports(config)
        self._soaks = SoakBook()
        self._live: LiveLine | None = None

    def tell(self, kind: str, test: str = "", **fields: object) -> None:
        """Pass on an event, or keep it for the journey to the controller."""
        told = {**event(kind, test, **fields), **self._origin}
        if not self._is_worker:
            self._hear(told)
        elif not say_to_controller(self._config, told):
            self._waiting.append(told)

    def note(self, kind: str, test: str, **fields: object) -> None:
        """Show something of a running test that no report keeps: ``progress`` of a soak, a ``slow`` test's text."""
        noted = {"note": kind, "test": test, **fields, **self._origin}
        if not self._is_worker:
            self._show(noted)
        else:
            say_to_controller(self._config, noted)

    def hear_worker(self, words: Mapping[str, Any]) -> None:
        """What a worker's desk was told."""
        if "note" in words:
            self._show(words)
        else:
            self._hear(words)

    def take_waiting(self) -> list[dict[str, Any]]:
        """The events that have to travel with a report."""
        taken, self._waiting = self._waiting, []
        return taken

    def _hear(self, told: Mapping[str, Any]) -> None:
        self._soaks.hear(told)
        if self._live is not None and told["event"] == "finished":
            self._live.end(told["test"])
        for report in self._reports:
            report.hear(told)

    def _show(self, noted: Mapping[str, Any]) -> None:
        test = noted["test"]
        if noted["note"] == "progress":
            self._soaks.note(test, noted)
        if self._live is None:
            return
        if noted["note"] == "progress":
            self._live.show(test, noted)
        else:
            self._live.say(f"SLOW {test}: {noted['text']}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        if not self._is_worker:
            self._live = live_line(self._config)
            settings = settings_of(self._config)
            self.tell(
                "session",
                pid=os.getpid(),
                platform=platform_line(),
                versions=versions_line(),
                seed=settings.seed,
                arguments=[str(argument) for argument in self._config.invocation_params.args],
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        if self._live is not None:
            self._live.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_worker:
            return
        if self._live is not None:
            self._live.clear()
        self._tally.count(report)
        for told in getattr(report, "rl_stability", {}).pop("events", ()):
            self._hear(told)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """An xdist controller waits for its workers here; where tests run, the engine waits for each of them."""
        soaks_elsewhere = settings_of(self._config).soak and self._config.pluginmanager.hasplugin("dsession")
        with ended_by_sigterm() if soaks_elsewhere else nullcontext():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._live is not None:
            self._live.clear()
        for told in self._soaks.cut_short():
            self._hear(told)
        for report in self._reports:
            report.close()
        if session.exitstatus == pytest.ExitCode.OK and any(report.trouble for report in self._reports):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for trouble in [line for report in self._reports for line in report.trouble.splitlines()]:
            terminalreporter.write_line(f"rl-stability: {trouble}", red=True)
        told = [line for report in self._reports for line in report.lines()]
        for line in [*self._soaks.lines(), *told, *self._tally.left_lines()]:
            terminalreporter.write_line(f"rl-stability: {line}")
        if tally := self._tally.line():
            terminalreporter.write_line(tally)

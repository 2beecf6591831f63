"""Hands every event of a run to its reports, in the process that shows results (with xdist: the controller)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol

import pytest

from pytest_rlstability.child.verdict_report import junit_properties
from pytest_rlstability.compat.plugins import close_when_silent, reporting_for
from pytest_rlstability.compat.pytest import JunitLog
from pytest_rlstability.config.options import settings_of
from pytest_rlstability.leaks.signals.registry import added_facts, signals_of
from pytest_rlstability.model.events import Event, Finished, Note, Outcome, Session, Started, from_json, to_json
from pytest_rlstability.model.messages import Json
from pytest_rlstability.model.redaction import redacted
from pytest_rlstability.model.verdict import Verdict
from pytest_rlstability.osinfo.machine import platform_line, versions_line
from pytest_rlstability.session.sigterm import ended_by_sigterm
from pytest_rlstability.session.terminal.flaky_summary import FlakySummary
from pytest_rlstability.session.terminal.leak_summary import LeakSummary
from pytest_rlstability.session.terminal.live_line import LiveLine, live_line
from pytest_rlstability.session.terminal.run_lines import Tally
from pytest_rlstability.session.terminal.shown_verdict import add_location, shorten, status_with_word
from pytest_rlstability.session.terminal.soak_summary import SoakSummary
from pytest_rlstability.session.xdist_channel import SILENCE, send_to_controller, survive_lost_hosts


class Report(Protocol):
    """Handles every event of the run, in the process that shows results. Opened by ``pytest_rlstability_reports``."""

    trouble: str
    """What went wrong, in a line or several: shown in red, and the run does not end as a success."""

    def handle(self, event: Event) -> None:
        """Take note of an event. Raises nothing: a report that cannot be written sets ``trouble``."""

    def close(self) -> None:
        """The run is over: finish what is being written."""

    def lines(self) -> Sequence[str]:
        """Lines for the closing section of the terminal."""


class EventBus:
    """A plugin that hands the engine's events to the reports and writes the closing lines.

    In an xdist worker nothing is shown. Its events go to the controller: at once where the channel to it is open, else
    with the test's last report.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tally = Tally()
        self._waiting: list[Json] = []
        worker = getattr(config, "workerinput", None)
        self._is_worker = worker is not None
        self.workers: int = worker["workercount"] if worker else 1
        self._host = socket.gethostname()
        self._worker: str = worker["workerid"] if worker else "main"
        self._reports: list[Report] = (
            [] if self._is_worker else [*chain(*config.hook.pytest_rlstability_reports(config=config))]
        )
        self._soaks = SoakSummary()
        self._promises = FlakySummary()
        budget = settings_of(config).leaks
        signals = {} if budget is None else {signal.name: signal for signal in signals_of(config)}
        self._leaks = None if budget is None else LeakSummary(budget, signals)
        self._running: dict[str, Started] = {}
        self._hosts: dict[str, str] = {}
        self._live: LiveLine | None = None
        self._is_over = False

    def emit(self, event: Event) -> None:
        """Handle an event of this process, or send it to the controller."""
        event = replace(event, host=self._host, worker=self._worker)
        if not self._is_worker:
            self.handle(event)
        elif not send_to_controller(self._config, event) and not isinstance(event, Note):
            self._waiting.append(to_json(event))

    def take_waiting(self) -> list[Json]:
        """The events that have to travel with a report."""
        taken, self._waiting = self._waiting, []
        return taken

    def handle(self, event: Event) -> None:
        """Show an event in the terminal and hand it to the reports, which get no notes."""
        self._soaks.handle(event)
        self._promises.handle(event)
        if self._leaks is not None:
            self._leaks.handle(event)
        self._hosts[event.worker] = event.host
        if isinstance(event, Started):
            self._running[event.test] = event
        elif isinstance(event, Finished):
            self._running.pop(event.test, None)
        if self._live is not None:
            self._live.handle(event)
        if not isinstance(event, Note):
            for report in self._reports:
                report.handle(event)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        if not self._is_worker:
            survive_lost_hosts(self._config)
            self._live = live_line(self._config)
            self.emit(
                Session(
                    pid=os.getpid(),
                    root=str(self._config.rootpath),
                    platform=platform_line(),
                    versions=versions_line(),
                    seed=settings_of(self._config).seed,
                    signals=added_facts(self._config),
                    arguments=redacted(str(argument) for argument in self._config.invocation_params.args),
                )
            )

    @pytest.hookimpl(trylast=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if self._is_worker:
            return
        if not (known := getattr(report, "rl_stability", {})):
            if report.failed:
                self.emit(_not_collected(report))
            return
        self._tally.count(report)
        self._handle_events(report)
        known = {**known, "seed": settings_of(self._config).seed, "backend": "inprocess"}
        title = Verdict.from_dict(known["verdict"]).title
        JunitLog(self._config).describe_error(report, title, junit_properties(known))
        shorten(report, self._config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        if self._live is not None:
            self._live.clear()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        if self._is_worker:
            with reporting_for(self._config, report.nodeid):
                return (yield)
        if self._live is not None:
            self._live.clear()
        self._tally.count(report)
        self._handle_events(report)
        shorten(report, self._config)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        status = yield
        # The short summary has the word already, after the test's name.
        return status if self._is_over and report.failed else status_with_word(status, report)

    def _handle_events(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        for data in getattr(report, "rl_stability", {}).pop("events", ()):
            if (event := from_json(data)) is not None:
                self.handle(event)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        close_when_silent(gateway, SILENCE)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """A worker was lost with this test: give the reports the end that it cannot send."""
        worker = report.node.gateway.id
        started = self._running.get(crashitem, Started(test=crashitem))
        host = self._hosts.get(worker, "")
        where = f" It ran on {host}." if host else ""
        report.longrepr = f"{report.longrepr}\nThe worker died, or the connection to its host broke.{where}"
        self.handle(
            Finished(
                test=crashitem,
                outcome=Outcome.FAILED,
                duration=max(0.0, time.time() - started.time),
                backend=started.backend,
                seed=started.seed,
                report=report.longrepr,
                host=host,
                worker=worker,
            )
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Let SIGTERM end an xdist controller that waits for soaks. Where tests run, the engine sees to that."""
        soaks_elsewhere = settings_of(self._config).soak and self._config.pluginmanager.hasplugin("dsession")
        with ended_by_sigterm() if soaks_elsewhere else nullcontext():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._live is not None:
            self._live.clear()
        for event in self._soaks.cut_short():
            self.handle(event)
        for report in self._reports:
            report.close()
        if session.exitstatus == pytest.ExitCode.OK and any(report.trouble for report in self._reports):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self._is_over = True
        for name, word in (("failed", "FAILED"), ("error", "ERROR")):
            for report in terminalreporter.getreports(name):
                add_location(report, self._config, word)
        for trouble in [line for report in self._reports for line in report.trouble.splitlines()]:
            terminalreporter.write_line(f"rl-stability: {trouble}", red=True)
        closing = [line for report in self._reports for line in report.lines()]
        growth = self._leaks.lines() if self._leaks is not None else ()
        closing = [*self._soaks.lines(), *self._promises.lines(), *growth, *closing]
        for line in [*closing, *self._tally.plugin_lines(), *self._tally.resource_lines()]:
            terminalreporter.write_line(f"rl-stability: {line}")
        if self._config.get_verbosity() < -1:
            return  # pytest leaves out its own closing line too
        if self._tally.verdicts:
            terminalreporter.write_line(f"rl-stability: {platform_line()}; {versions_line()}")
        if tally := self._tally.line():
            terminalreporter.write_line(tally)


def _not_collected(report: pytest.CollectReport) -> Finished:
    """The event for a module that pytest could not collect: reports count it as a failure, as pytest does."""
    lines = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
    return Finished(
        test=report.nodeid,
        outcome=Outcome.FAILED,
        message=f"in collection: {lines[0]}" if lines else "in collection",
        report=report.longreprtext,
    )

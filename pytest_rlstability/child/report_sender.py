"""Sends each phase, report and warning of a test to pytest's process, as JSON and never as a pickle."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from pathlib import Path

import pytest

from pytest_rlstability.child.dead_workers import dead_workers
from pytest_rlstability.compat.pytest import keep_subtest_arguments, remove_from_hook
from pytest_rlstability.model.json_text import plain
from pytest_rlstability.model.messages import DebuggerEntered, FixtureEntered, Json, PhaseReported, WarningRecorded
from pytest_rlstability.model.progress_counters import ProcessCounters
from pytest_rlstability.model.units import shorten
from pytest_rlstability.osinfo.message_socket import MessageSocket

REPORTING_HOOKS = (
    "pytest_runtest_logstart",
    "pytest_runtest_logreport",
    "pytest_runtest_logfinish",
    "pytest_warning_recorded",
)


def remove_other_reporters(session: pytest.Session) -> None:
    """Reporting is the job of pytest's process. Here only the session's own count of failures goes on, because
    ``--maxfail`` decides from it whether wide fixtures are torn down."""
    for name in REPORTING_HOOKS:
        hook = getattr(session.config.hook, name)
        for implementation in hook.get_hookimpls():
            if implementation.plugin is not session:
                remove_from_hook(hook, implementation.plugin)


class ReportSender:
    """A pytest plugin: notes each phase as it begins and sends each report as it is made."""

    def __init__(self, config: pytest.Config, directory: Path) -> None:
        self._config = config
        self._directory = directory
        self._connection: MessageSocket | None = None
        self._fixture = ""
        self._keywords: dict[str, object] = {}
        self.failed = False
        """Whether a report since this was cleared was one of failing."""

    def attach(self, connection: MessageSocket, counters: ProcessCounters) -> None:
        self._connection = connection
        self._counters = counters

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        __tracebackhide__ = True
        self._counters.enter("setup")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        __tracebackhide__ = True
        self._counters.enter("call")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        __tracebackhide__ = True
        self._counters.enter("teardown")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        __tracebackhide__ = True
        if fixturedef.scope == "function" or self._connection is None:
            return (yield)
        outer, self._fixture = self._fixture, fixturedef.argname
        self._connection.send(FixtureEntered(self._fixture))
        try:
            return (yield)
        finally:
            self._fixture = outer
            self._connection.send(FixtureEntered(outer))

    @pytest.hookimpl
    def pytest_enter_pdb(self) -> None:
        if self._connection is not None:
            self._connection.send(DebuggerEntered())

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        assert self._connection is not None
        self.failed |= report.failed
        if report.failed:
            for worker in dead_workers(self._directory):
                self._connection.send(worker)
        data = flatten_report(self._config, report)
        if report.when != "setup" and report.keywords == self._keywords:
            del data["keywords"]
        self._keywords = {**report.keywords}
        self._connection.send(PhaseReported(data))

    @pytest.hookimpl
    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        if when != "runtest" or self._connection is None:
            return  # the hook is historic: pytest's own process has reported these
        category = warning_message.category
        self._connection.send(
            WarningRecorded(
                when=when,
                nodeid=nodeid,
                message=str(warning_message.message),
                category=(category.__module__, category.__qualname__),
                filename=warning_message.filename,
                lineno=warning_message.lineno,
                line=warning_message.line,
            )
        )


def flatten_report(config: pytest.Config, report: pytest.TestReport) -> Json:
    """A report as JSON; properties that JSON does not know cross as the text that JUnit would show."""
    data: Json = config.hook.pytest_report_to_serializable(config=config, report=report)
    data["user_properties"] = [(str(name), plain(value, str)) for name, value in report.user_properties]
    keep_subtest_arguments(data, report)
    data["sections"] = [(str(title), shorten(str(text))) for title, text in report.sections]
    return data

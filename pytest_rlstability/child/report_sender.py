"""Reports cross from a test's process to pytest's as JSON: never pickle, and never a failure of their own.

``Reporter`` is registered as a pytest plugin in the test's process; ``revive_*`` are its mirror in pytest's.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from sys import intern
from typing import Any

import pytest

from pytest_rlstability.isolation.board import Slot
from pytest_rlstability.isolation.output import shorten
from pytest_rlstability.isolation.wire import Record, Wire, plain
from pytest_rlstability.isolation.workers import dead_workers

REPORTING_HOOKS = (
    "pytest_runtest_logstart",
    "pytest_runtest_logreport",
    "pytest_runtest_logfinish",
    "pytest_warning_recorded",
)


def silence_other_reporters(session: pytest.Session) -> None:
    """Reporting belongs to pytest's process: here only the session's own count of failures goes on, because
    ``--maxfail`` decides from it whether wide fixtures are torn down."""
    for name in REPORTING_HOOKS:
        hook = getattr(session.config.hook, name)
        for implementation in hook.get_hookimpls():
            if implementation.plugin is not session:
                hook._remove_plugin(implementation.plugin)


class Reporter:
    """Tells the supervisor each phase as it begins and each report as it is made."""

    def __init__(self, config: pytest.Config, directory: Path) -> None:
        self._config = config
        self._directory = directory
        self._wire: Wire | None = None
        self.all_passed = True
        """Whether every report since this was set was one of passing."""

    def attach(self, wire: Wire, slot: Slot) -> None:
        """Speak for the process at the other end of *wire*."""
        self._wire = wire
        self._slot = slot

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        self._slot.enter("setup")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        self._slot.enter("call")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        self._slot.enter("teardown")
        return (yield)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        assert self._wire is not None
        self.all_passed &= report.outcome == "passed"
        if report.failed and (dead := dead_workers(self._directory)):
            self._wire.send({"kind": "dead-workers", "workers": dead})
        self._wire.send({"kind": "report", "data": flatten_report(self._config, report)})

    @pytest.hookimpl
    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        if when != "runtest" or self._wire is None:
            return  # the hook is historic: pytest's own process has told these
        self._wire.send({"kind": "warning", "when": when, "nodeid": nodeid, **flatten_warning(warning_message)})


def flatten_report(config: pytest.Config, report: pytest.TestReport) -> Record:
    """A report for the wire; properties that JSON cannot hold cross as the text that JUnit would show."""
    data: Record = config.hook.pytest_report_to_serializable(config=config, report=report)
    data["user_properties"] = [(str(name), plain(value, str)) for name, value in report.user_properties]
    if "_subtest.context" in data:
        # pytest sends its arguments as text, for serializers that know less than JSON.
        data["_subtest.context"]["kwargs"] = dict(report.context.kwargs)
    data["sections"] = [(str(title), shorten(str(text))) for title, text in report.sections]
    return data


def revive_report(item: pytest.Item, data: Record) -> pytest.TestReport:
    """The report that ``flatten_report`` took apart; what pytest knows as tuples are tuples again.

    Pytest keeps every report until the end: what is the same in all of them is kept once.
    """
    config = item.config
    data["nodeid"] = item.nodeid  # xdist may have added its group to it, in pytest's process only
    own = {name: name for name in item.keywords}
    data["keywords"] = {own.get(name, name): value for name, value in data["keywords"].items()}
    if data["location"] == list(item.location):
        data["location"] = item.location
    for key in ("user_properties", "sections"):
        data[key] = [tuple(pair) for pair in data[key]]
    for key in ("location", "longrepr"):
        if isinstance(data.get(key), list):
            data[key] = tuple(data[key])
    data = {intern(key): value for key, value in data.items()}
    data.update(outcome=intern(data["outcome"]), when=intern(data["when"]))
    subtest = data.get("_subtest.context")
    report: pytest.TestReport | None = config.hook.pytest_report_from_serializable(config=config, data=data)
    assert report is not None, f"no plugin knows the report type {data.get('$report_type')!r}"
    if subtest is not None:
        _revive_subtest(item, report, subtest["kwargs"])
    return report


def _revive_subtest(item: pytest.Item, report: Any, arguments: Record) -> None:
    """Undo what pytest does to arguments that cross, and count what it counts: a test fails with its subtests, if they
    are the fixture's, not unittest's."""
    from _pytest import subtests

    object.__setattr__(report.context, "kwargs", arguments)  # making one anew would take their repr again
    key: Any = getattr(subtests, "failed_subtests_key", None)
    if report.failed and key in item.config.stash and "subtests" in getattr(item, "fixturenames", ()):
        item.config.stash[key][getattr(item, "id", item.nodeid)] += 1


def flatten_warning(message: warnings.WarningMessage) -> Record:
    return {
        "message": str(message.message),
        "category": [message.category.__module__, message.category.__qualname__],
        "filename": message.filename,
        "lineno": message.lineno,
        "line": message.line,
    }


def revive_warning(record: Record) -> warnings.WarningMessage:
    """The warning a test's process recorded; a category that cannot be found here is shown as its nearest kin."""
    category = _find_warning(*record["category"])
    return warnings.WarningMessage(
        message=_instance(category, record["message"]),
        category=category,
        filename=record["filename"],
        lineno=record["lineno"],
        line=record["line"],
    )


def _find_warning(module_name: str, qualified_name: str) -> type[Warning]:
    try:
        found: Any = import_module(module_name)
        for part in qualified_name.split("."):
            found = getattr(found, part)
    except Exception:
        return UserWarning
    return found if isinstance(found, type) and issubclass(found, Warning) else UserWarning


def _instance(category: type[Warning], text: str) -> Warning:
    try:
        return category(text)
    except Exception:
        return UserWarning(text)

"""Makes pytest's objects again of what a test's process sent: reports and warnings."""

from __future__ import annotations

import warnings
from importlib import import_module
from sys import intern
from typing import Any

import pytest

from pytest_rlstability.compat.pytest import restore_subtest, subtest_arguments
from pytest_rlstability.model.messages import Json, WarningRecorded


def restore_report(item: pytest.Item, data: Json) -> pytest.TestReport:
    """The report that ``child.report_sender`` flattened; what pytest knows as tuples are tuples again.

    Pytest keeps every report until the end: what is the same in all of them is kept once.
    """
    config = item.config
    data["nodeid"] = item.nodeid  # xdist may have added its group to it, in pytest's process only
    data["keywords"] = {intern(name): value for name, value in data["keywords"].items()}
    if data["location"] == list(item.location):
        data["location"] = item.location
    for key in ("user_properties", "sections"):
        data[key] = [tuple(pair) for pair in data[key]]
    for key in ("location", "longrepr"):
        if isinstance(data.get(key), list):
            data[key] = tuple(data[key])
    data = {intern(key): value for key, value in data.items()}
    data.update(outcome=intern(data["outcome"]), when=intern(data["when"]))
    subtest = subtest_arguments(data)
    report: pytest.TestReport | None = config.hook.pytest_report_from_serializable(config=config, data=data)
    assert report is not None, f"no plugin knows the report type {data.get('$report_type')!r}"
    if subtest is not None:
        restore_subtest(item, report, subtest)
    if isinstance(item, pytest.DoctestItem) and report.failed and isinstance(report.longrepr, str):
        report.longrepr = _DoctestFailure(report.longrepr)  # type: ignore[assignment]
    return report


class _DoctestFailure:
    """What pytest shows of a failed doctest. It has no message for one line, and the first line of a text is none."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def toterminal(self, writer: Any) -> None:
        writer.line(self._text)


def restore_warning(recorded: WarningRecorded) -> warnings.WarningMessage:
    """The warning that a test's process recorded; ``UserWarning`` stands for a category that cannot be found here."""
    category = _find_warning(*recorded.category)
    return warnings.WarningMessage(
        message=_instance(category, recorded.message),
        category=category,
        filename=recorded.filename,
        lineno=recorded.lineno,
        line=recorded.line,
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

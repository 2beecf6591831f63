"""Calls hooks of some plugins in pytest's process for a test whose own process died before it could."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from pytest_rlstability.model.verdict import Verdict, VerdictFailure


def call_missed_hook(item: pytest.Item, name: str, plugins: Collection[object], **arguments: Any) -> None:
    """Call the hook *name* in those of *plugins* that apply to *item*."""
    manager = item.config.pluginmanager
    wanted = {id(plugin) for plugin in plugins}
    applying = {id(part.plugin) for part in getattr(item.ihook, name).get_hookimpls()}
    others = [plugin for plugin in manager.get_plugins() if id(plugin) not in wanted & applying]
    manager.subset_hook_caller(name, others)(item=item, **arguments)


def show_missed_report(
    item: pytest.Item, report: pytest.TestReport, verdict: Verdict, plugins: Collection[object]
) -> None:
    """Have ``pytest_runtest_makereport`` of *plugins* see *report*."""

    def end() -> None:
        if not report.passed:
            raise VerdictFailure(verdict)

    when: Any = report.when
    giver = _ReportGiver(report)
    item.config.pluginmanager.register(giver)
    try:
        call = pytest.CallInfo.from_call(end, when=when)
        call_missed_hook(item, "pytest_runtest_makereport", [*plugins, giver], call=call)
    finally:
        item.config.pluginmanager.unregister(giver)


class _ReportGiver:
    def __init__(self, report: pytest.TestReport) -> None:
        self._report = report

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_makereport(self) -> pytest.TestReport:
        return self._report

"""Results of allure-pytest: the test's process writes them, and pytest's those of the tests whose process died."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_rlstability.compat.plugins import drop_allure_result, set_allure_message
from pytest_rlstability.model.verdict import Verdict
from pytest_rlstability.session.other_plugins.missed_hooks import call_missed_hook, show_missed_report


class AllureResults:
    """Without ``--alluredir`` nothing here does anything."""

    def __init__(self, config: pytest.Config) -> None:
        self._listener: Any = config.pluginmanager.getplugin("allure_listener")
        self._written: pytest.Item | None = None

    def finish(self, item: pytest.Item) -> None:
        """Drop the result that allure has begun here for *item*, unless it was filled in."""
        if self._listener is not None and self._written is not item:
            drop_allure_result(self._listener, item)

    def fill_in(self, item: pytest.Item, reports: Sequence[pytest.TestReport], verdict: Verdict) -> None:
        """Let allure see the reports of *item*, whose process died, and with it the result that it was making."""
        if self._listener is None:
            return
        self._written = item
        call_missed_hook(item, "pytest_runtest_setup", [self._listener])
        for report in reports:
            show_missed_report(item, report, verdict, [self._listener])
        set_allure_message(self._listener, item, verdict.title)
        call_missed_hook(item, "pytest_runtest_teardown", [self._listener], nextitem=None)

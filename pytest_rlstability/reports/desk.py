"""Where the reports of a run come together, in the process that shows them (with xdist: the controller)."""

from __future__ import annotations

import pytest

from pytest_rlstability.reports.terminal import Tally


class Desk:
    """A plugin object: hears every report and says the closing words."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tally = Tally()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tally.count(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if line := self._tally.line():
            terminalreporter.write_line(line)

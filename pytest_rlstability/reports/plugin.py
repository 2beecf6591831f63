"""The options of the reports, and the hook that opens those that were asked for.

Every pytest run imports this module. A report is imported when the switch is on and one of its options is given.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from pytest_rlstability.config.options import OPTION_GROUP, settings_of

if TYPE_CHECKING:
    from pytest_rlstability.session.event_bus import Report

TOLERANCE = "20%"

REPORTS: dict[str, dict[str, tuple[str, str]]] = {
    "jsonl": {"--rl-jsonl": ("PATH", "write an event log, one JSON object a line")},
    "html": {"--rl-html": ("PATH", "write a page with charts, in one file")},
    "prometheus": {
        "--rl-prometheus": ("PATH", "write metrics for Prometheus' textfile collector, every 15 s and at the end"),
    },
    "metrics_port": {
        "--rl-metrics-port": ("N", "serve live metrics at http://127.0.0.1:N/metrics during the run; 0: a free port"),
    },
    "baseline": {
        "--rl-baseline": ("PATH", "compare growth, peak memory, lap time and pass rate with a saved run; worse fails"),
        "--rl-save-baseline": ("PATH", "save growth, peak memory, lap time and pass rate of this run"),
    },
    "github": {},
    "annotations": {},
}  # fmt: skip
"""The modules of the reports, each with its options. A module has ``open_report(config)``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup(OPTION_GROUP)
    for options in REPORTS.values():
        for flag, (metavar, text) in options.items():
            group.addoption(flag, metavar=metavar, default=None, help=text)
    text = f"how much worse than --rl-baseline is tolerated (default: {TOLERANCE})"
    parser.addini("rl_baseline_tolerance", text, default=TOLERANCE)


def pytest_configure(config: pytest.Config) -> None:
    given = [flag for options in REPORTS.values() for flag in options if config.getoption(flag) is not None]
    if given and not settings_of(config).enabled:
        raise pytest.UsageError(f"{given[0]} reports on checked tests: it needs --rl-stability")


@pytest.hookimpl(tryfirst=True)
def pytest_rlstability_reports(config: pytest.Config) -> list[Report]:
    opened = []
    for name, options in REPORTS.items():
        if not options or any(config.getoption(flag) is not None for flag in options):
            opened.append(import_module(f"pytest_rlstability.reports.{name}").open_report(config))
    return [report for report in opened if report is not None]

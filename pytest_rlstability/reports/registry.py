"""Every report of a run: one file in this package and one line here.

A report's module has ``add_options(group, parser)``, which adds its flags, and ``open_report(config)``, which gives
the report those flags ask for, or ``None``. It is imported at every start of pytest: heavy things go into functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import pytest

REPORTS: tuple[str, ...] = (
    "pytest_rlstability.reports.jsonl",
    "pytest_rlstability.reports.html",
    "pytest_rlstability.reports.prometheus",
    "pytest_rlstability.reports.metrics_port",
    "pytest_rlstability.reports.baseline",
    "pytest_rlstability.reports.github",
)


class Report(Protocol):
    """Hears every event of the run, in the process that shows things, and says its closing words at the end."""

    trouble: str
    """What went wrong, in a line or several: shown in red, and the run does not end as a success."""

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take note of an event. Raises nothing: a report that cannot be written is its ``trouble``."""

    def close(self) -> None:
        """The run is over: finish what is being written."""

    def lines(self) -> Sequence[str]:
        """What to say in the terminal's closing section."""


def add_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    for name in REPORTS:
        import_module(name).add_options(group, parser)


def open_reports(config: pytest.Config) -> list[Report]:
    """The reports this run asked for."""
    opened = (import_module(name).open_report(config) for name in REPORTS)
    return [report for report in opened if report is not None]


def path_option(config: pytest.Config, name: str) -> str | None:
    """The path given for an option, seen from the directory pytest was started in."""
    given = config.getoption(name)
    return None if given is None else str(config.invocation_params.dir / given)

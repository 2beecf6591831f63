"""``--rl-metrics-port=N``: the run's metrics over HTTP, on loopback, while the run lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_rlstability.reports.metrics_server import MetricsPort


def add_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    text = "serve live metrics at http://127.0.0.1:N/metrics while the run lasts; 0: a free port"
    group.addoption("--rl-metrics-port", metavar="N", default=None, help=text)


def open_report(config: pytest.Config) -> MetricsPort | None:
    given = config.getoption("rl_metrics_port")
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or int(given) > 65535:
        raise pytest.UsageError(f"--rl-metrics-port={given}: accepted is a port from 0 (any free one) to 65535")
    from pytest_rlstability.reports.exposition import require_library

    require_library("--rl-metrics-port")
    from pytest_rlstability.reports.metrics_server import MetricsPort

    port = MetricsPort(int(given))
    config.pluginmanager.register(port, "rlstability-metrics-port")
    return port

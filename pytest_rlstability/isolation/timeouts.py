"""pytest-timeout's limits, honoured from outside the test's process as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.beacon import is_test_process
from pytest_rlstability.isolation.watch import HardLimit, Watch

_GRACE = 1.0


def outside_limits(item: pytest.Item, directory: Path) -> list[Watch]:
    """The watch that pytest-timeout's marker, flag and ini ask for."""
    timeouts = item.config.pluginmanager.getplugin("timeout")
    if timeouts is None:
        return []
    settings = timeouts._get_item_settings(item)
    if not settings.timeout or settings.timeout <= 0:
        return []
    # Its signal method fails the test with a traceback where it can; its thread method only ends the process,
    # which is better done from here.
    grace = _GRACE if settings.method == "signal" else 0.0
    return [HardLimit(settings.timeout, grace, directory, call_only=settings.func_only)]


def uses_alarm(item: pytest.Item) -> bool:
    """Whether pytest-timeout catches SIGALRM in the test's process: it wakes no thread but to fail the test."""
    timeouts = item.config.pluginmanager.getplugin("timeout")
    if timeouts is None:
        return False
    settings = timeouts._get_item_settings(item)
    return bool(settings.timeout and settings.timeout > 0 and settings.method == "signal")


def is_kept_outside(item: pytest.Item, settings: Any, *, isolated: bool) -> bool:
    """Whether the limit is kept by the supervisor alone: in pytest's own process, where the alarm would hit us,
    and in the test's for the thread method, which knows no better than to end it."""
    if isolated:
        return True
    return is_test_process(item.config) and settings.method == "thread"

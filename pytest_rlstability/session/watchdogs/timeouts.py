"""pytest-timeout's limits, honoured from outside the test's process as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.beacon import is_test_process
from pytest_rlstability.isolation.watch import HardLimit, Watch
from pytest_rlstability.options import settings_of
from pytest_rlstability.soak.settings import soak_of, time_for_holders

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
    limit = settings.timeout + _soak_time(item)
    return [HardLimit(limit, grace, directory, call_only=settings.func_only)]


def _soak_time(item: pytest.Item) -> float:
    """What a soak is asked to take comes on top of its timeout: one that is meant for every test would end it."""
    settings = settings_of(item.config)
    soak = soak_of(item, settings)
    return 0.0 if soak is None else soak.duration + time_for_holders(soak.duration, settings.leak_budget)


def uses_alarm(item: pytest.Item) -> bool:
    """Whether pytest-timeout catches SIGALRM in the test's process: it wakes no thread but to fail the test."""
    timeouts = item.config.pluginmanager.getplugin("timeout")
    if timeouts is None:
        return False
    settings = timeouts._get_item_settings(item)
    return bool(settings.timeout and settings.timeout > 0 and settings.method == "signal")


def is_kept_outside(item: pytest.Item, settings: Any, *, isolated: bool) -> bool:
    """Whether the limit is kept by the supervisor alone: in pytest's own process, where the alarm would hit us, in
    the test's for the thread method, which knows no better than to end it, and for a soak, which may take longer."""
    if isolated or _soak_time(item):
        return True
    return is_test_process(item.config) and settings.method == "thread"

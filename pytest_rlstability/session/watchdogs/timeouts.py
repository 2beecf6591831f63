"""Enforces pytest-timeout's limits from outside the test's process as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.compat.plugins import timeout_settings
from pytest_rlstability.config.options import settings_of
from pytest_rlstability.config.plan import soak_of, time_for_holders
from pytest_rlstability.model.channel import is_test_process
from pytest_rlstability.session.watchdogs import KillCondition
from pytest_rlstability.session.watchdogs.limits import HardLimit

_GRACE = 1.0


def outside_limits(item: pytest.Item, directory: Path) -> list[KillCondition]:
    """The limit that pytest-timeout's marker, flag and ini ask for."""
    settings = timeout_settings(item)
    if settings is None or not settings.timeout or settings.timeout <= 0:
        return []
    # Its signal method fails the test with a traceback where it can; its thread method only ends the process,
    # which is better done from here.
    grace = _GRACE if settings.method == "signal" else 0.0
    limit = settings.timeout + _soak_time(item)
    return [HardLimit("timeout", limit, directory, grace, call_only=settings.func_only)]


def _soak_time(item: pytest.Item) -> float:
    """A soak's duration comes on top of its timeout: one that is meant for every test would end it."""
    settings = settings_of(item.config)
    soak = soak_of(item, settings)
    return 0.0 if soak is None else soak.duration + time_for_holders(soak.duration, settings.leak_budget)


def uses_alarm(item: pytest.Item) -> bool:
    """Whether pytest-timeout catches SIGALRM in the test's process: it wakes no thread but to fail the test."""
    settings = timeout_settings(item)
    return bool(settings and settings.timeout and settings.timeout > 0 and settings.method == "signal")


def is_kept_outside(item: pytest.Item, settings: Any, *, isolated: bool) -> bool:
    """Whether only the supervisor enforces the limit: in pytest's own process, where the alarm would interrupt us; in
    the test's process for the thread method, which can only end it; and for a soak, which may take longer."""
    if isolated or _soak_time(item):
        return True
    return is_test_process(item.config) and settings.method == "thread"

"""Enforces pytest-timeout's limits from outside the test's process as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.compat.plugins import timeout_settings
from pytest_rlstability.config.options import settings_of
from pytest_rlstability.config.plan import Plan, soak_of, sweep_budget, time_for_holders
from pytest_rlstability.model.channel import is_test_process
from pytest_rlstability.osinfo.timed_stacks import NEEDED, seconds_between
from pytest_rlstability.session.watchdogs import KillCondition
from pytest_rlstability.session.watchdogs.limits import HardLimit

_GRACE = 1.0
_SWEEP = 3
"""A check may take longer than its budget: the first laps, and a lap that has begun, do not count."""


def outside_limits(item: pytest.Item, directory: Path) -> list[KillCondition]:
    """The limit that pytest-timeout's marker, flag and ini ask for."""
    settings = timeout_settings(item)
    if settings is None or not settings.timeout or settings.timeout <= 0:
        return []
    # Its signal method fails the test with a traceback where it can; its thread method only ends the process,
    # which is better done from here.
    grace = _GRACE if settings.method == "signal" else 0.0
    limit = settings.timeout + _time_on_top(item)
    return [HardLimit("timeout", limit, directory, grace, phase="call" if settings.func_only else "")]


def stacks_every(item: pytest.Item, plan: Plan) -> float:
    """Seconds from one dump of a test's stacks to the next, so that there is one before any limit ends it; 0: none are
    needed, because they can be asked for."""
    if not NEEDED:
        return 0.0
    settings = timeout_settings(item)
    return seconds_between(plan.stall_after, plan.limit, 0.0 if settings is None else settings.timeout or 0.0)


def _time_on_top(item: pytest.Item) -> float:
    """The time of a soak, or of the check that ``--rl-leaks`` asks for, comes on top of the timeout: that is meant for
    one run of the test."""
    settings = settings_of(item.config)
    soak = soak_of(item, settings)
    if soak is None:
        return _SWEEP * (sweep_budget(item, settings) or 0.0)
    return soak.duration + time_for_holders(soak.duration, settings.leak_budget)


def uses_alarm(item: pytest.Item) -> bool:
    """Whether pytest-timeout catches SIGALRM in the test's process: it wakes no thread but to fail the test."""
    settings = timeout_settings(item)
    return bool(settings and settings.timeout and settings.timeout > 0 and settings.method == "signal")


def is_kept_outside(item: pytest.Item, settings: Any, *, isolated: bool) -> bool:
    """Whether only the supervisor enforces the limit: in pytest's own process, where the alarm would interrupt us; in
    the test's process for the thread method, which can only end it; and for a test that is repeated."""
    if isolated or _time_on_top(item):
        return True
    return is_test_process(item.config) and settings.method == "thread"

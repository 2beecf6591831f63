"""The watchdogs of this package, made for one run of a test."""

from __future__ import annotations

import pytest

from pytest_rlstability.config.options import settings_of
from pytest_rlstability.model.events import Slow
from pytest_rlstability.session.watchdogs import KillCondition, Observer, WatchContext
from pytest_rlstability.session.watchdogs.limits import HardLimit, HeldCrash, MemoryCap
from pytest_rlstability.session.watchdogs.soak_progress import SoakPulse
from pytest_rlstability.session.watchdogs.stall import StallWatch
from pytest_rlstability.session.watchdogs.timeouts import outside_limits, uses_alarm


def shipped_kill_conditions(item: pytest.Item, context: WatchContext) -> list[KillCondition]:
    """Its timeout, or the limit of every test; its stall limit and its memory cap."""
    plan = context.plan
    conditions = outside_limits(item, context.directory)
    if plan.limit > 0:
        conditions.append(HardLimit("limit (--rl-limit)", plan.limit, context.directory))
    if plan.stall_after > 0:
        conditions.append(
            StallWatch(
                plan.stall_after,
                context.directory,
                lambda text: context.emit(Slow(test=item.nodeid, text=text)),
                context.sample,
                native=settings_of(item.config).native,
                alarm_is_ours=uses_alarm(item),
                strangers=context.pids,
            )
        )
    if plan.memory is not None:
        conditions.append(MemoryCap(plan.memory))
    return conditions


def shipped_observers(item: pytest.Item, context: WatchContext) -> list[Observer]:
    """A look for crashes that Python itself reports, and the progress of a soak."""
    observers: list[Observer] = []
    if settings_of(item.config).holds_crashes:
        observers.append(HeldCrash())
    if context.plan.soak is not None:
        observers.append(SoakPulse(context.run, context.plan.soak.duration, context.emit))
    return observers

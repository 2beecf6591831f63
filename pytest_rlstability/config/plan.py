"""Decides how a test runs, and for how long, once, from its markers and the run's settings."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_rlstability.compat.plugins import timeout_settings
from pytest_rlstability.config.in_process import in_process_tests
from pytest_rlstability.config.markers import Flaky, Isolated, NoStall, Soak, is_marked, read_marker
from pytest_rlstability.config.options import Settings

_HOLDERS_SHARE = 0.05
_LONGEST_FOR_HOLDERS = 600.0


@dataclass(frozen=True)
class Plan:
    """How one test runs. ``group`` is None for a process of its own, else what the tests that share one have in common;
    ``auto`` and ``session`` are for tests of any file."""

    isolate: bool
    backend: str
    group: str | None
    memory: int | None
    environment: tuple[tuple[str, str], ...]
    exit_check: bool
    stall_after: float
    limit: float
    """Seconds after which the test is ended, however busy it is; 0: never."""
    soak: Soak | None
    flaky: Flaky | None


def plan_for(item: pytest.Item, settings: Settings) -> Plan:
    """Command line before marker before ini, but a limit in a marker is the author's promise and stands."""
    marker: Isolated | None = read_marker(item, "rl_isolated")
    stall: NoStall | None = read_marker(item, "rl_no_stall")
    flaky: Flaky | None = None if settings.flaky == "once" else read_marker(item, "rl_flaky")
    marked = is_marked(item) or sweep_budget(item, settings) is not None
    isolated = marker or Isolated()
    plugin = in_process_tests(item.config).plugin_of(item)
    return Plan(
        isolate=settings.enabled and (settings.scope == "all" or marked) and not plugin,
        backend=_backend(isolated, settings),
        group=None if flaky else _group(item, isolated, settings, marked),
        memory=isolated.memory or settings.memory or None,
        environment=isolated.env,
        exit_check=isolated.exit_check,
        stall_after=settings.stall_after if stall is None else stall.after,
        limit=_limit(item, settings),
        soak=soak_of(item, settings),
        flaky=flaky,
    )


def _backend(isolated: Isolated, settings: Settings) -> str:
    if settings.backend_given and (settings.backend == "inprocess" or not isolated.env):
        return settings.backend
    if isolated.env:
        return "spawn"
    return isolated.backend or settings.backend


def _group(item: pytest.Item, isolated: Isolated, settings: Settings, marked: bool) -> str | None:
    """Marked tests have a process of their own, unless their marker lets them share one."""
    unit = isolated.group or ("test" if marked else settings.group)
    if unit == "test":
        return None
    if unit in ("auto", "session"):
        return unit
    node = item.getparent(pytest.Class if unit == "class" else pytest.Module)
    return None if node is None else f"{unit} {node.nodeid} {isolated.backend} {isolated.env} {isolated.memory}"


def _limit(item: pytest.Item, settings: Settings) -> float:
    """``--rl-limit``, for a test that has no timeout and no duration of its own. A leak check has its budget on top."""
    timeout = timeout_settings(item)
    if soak_of(item, settings) is not None or (timeout is not None and timeout.timeout):
        return 0.0
    if not settings.limit:
        return 0.0
    checks_leaks = read_marker(item, "rl_no_leak") is not None
    return settings.limit + (settings.leak_budget if checks_leaks else sweep_budget(item, settings) or 0.0)


def time_for_holders(duration: float, leak_budget: float) -> float:
    """Seconds in which the holder of what leaked is searched for after a soak: a long one gets more.

    >>> time_for_holders(60, 30), time_for_holders(8 * 3600, 30)
    (30, 600.0)
    """
    return max(leak_budget, min(_HOLDERS_SHARE * duration, _LONGEST_FOR_HOLDERS))


def sweep_budget(item: pytest.Item | pytest.Collector, settings: Settings) -> float | None:
    """Seconds for the leak check that ``--rl-leaks`` gives *item*; None if it gets none, or has a check of its own."""
    own = any(item.get_closest_marker(name) for name in ("rl_no_leak", "rl_soak", "rl_flaky"))
    return None if own else settings.leaks


def soak_of(item: pytest.Item | pytest.Collector, settings: Settings) -> Soak | None:
    """The soak that *item* is in this run, or None. What ``--rl-soak`` says comes before the marker's duration."""
    marker: Soak | None = read_marker(item, "rl_soak") if settings.soak else None
    if marker is None or settings.soak_duration is None:
        return marker
    return Soak(settings.soak_duration, marker.every)

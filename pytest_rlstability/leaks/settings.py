"""The settings of one leak check, from markers, options and ini."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pytest_rlstability.config.markers import NoLeak, read_marker
from pytest_rlstability.config.options import settings_of
from pytest_rlstability.config.plan import soak_of, sweep_budget
from pytest_rlstability.leaks.known_leaks import KnownLeak, shipped_known_leaks
from pytest_rlstability.leaks.signals.registry import Signals, shipped_signals, signals_of

LAPS_WHEN_OFF = 3


@dataclass(frozen=True)
class LeakSettings:
    """``LeakSettings(limit=1024, signals=("fds", "python"), checking=True)``.

    *limit* is the growth allowed per lap, in bytes for memory. Without *checking* the laps are not judged.
    """

    limit: float | None = None
    signals: tuple[str, ...] | None = None
    warmup: int | None = None
    laps: int | None = None
    budget: float = 30.0
    checking: bool = False
    lap_count: int = 20
    duration: float | None = None
    """Of a soak: it laps for so many seconds, even if there is an answer earlier."""
    every: float | None = None
    memory_limit: int | None = None
    sweep: bool = False
    """Asked for by ``--rl-leaks``, for a test that was not written to be repeated."""
    catalog: Signals = field(default_factory=lambda: Signals(shipped_signals()))
    """The signals that *signals* are chosen from."""
    open_known_leaks: Callable[[], list[KnownLeak]] = shipped_known_leaks

    @property
    def marker(self) -> str:
        """The marker that asked for the check."""
        return "--rl-leaks" if self.sweep else "rl_no_leak" if self.duration is None else "rl_soak"

    def limit_of(self, unit: str) -> float:
        """The growth per lap that a signal measured in *unit* is allowed.

        The limit is a size. It is a count only where nothing but countable things is judged:
        ``rl_no_leak(limit=1, signals=["fds"])``.
        """
        if self.limit is None:
            return 0.0
        only_counts = self.signals is not None and not set(self.signals) & set(self.catalog.group("memory"))
        return self.limit if unit == "bytes" or only_counts else 0.0


def is_whole(item: pytest.Item) -> bool:
    """Whether *item* is repeated whole: a leak test or a soak without ``rl_laps``, or a test that ``--rl-leaks``
    checks."""
    if sweep_budget(item, settings_of(item.config)) is not None:
        return True
    if "rl_laps" in getattr(item, "fixturenames", ()):
        return False
    if item.get_closest_marker("rl_no_leak") is not None:
        return True
    return item.get_closest_marker("rl_soak") is not None and soak_of(item, settings_of(item.config)) is not None


def leak_settings(item: pytest.Item) -> LeakSettings:
    """The settings for *item*, from its markers, the command line and the ini file."""
    config = item.config
    run, promise = settings_of(config), read_marker(item, "rl_no_leak")
    asked = promise or NoLeak()
    catalog = signals_of(config)
    soak, isolated = soak_of(item, run), read_marker(item, "rl_isolated")
    sweep = sweep_budget(item, run)
    return LeakSettings(
        limit=asked.limit,
        signals=None if asked.signals is None else catalog.expand(asked.signals),
        catalog=catalog,
        open_known_leaks=lambda: [known for added in config.hook.pytest_rlstability_known_leaks() for known in added],
        warmup=asked.warmup,
        laps=asked.laps,
        budget=run.leak_budget if sweep is None else sweep,
        sweep=sweep is not None,
        checking=run.enabled and not (promise is None and soak is None),
        duration=None if soak is None else soak.duration,
        every=None if soak is None else soak.every,
        memory_limit=None if isolated is None else isolated.memory,
        lap_count=run.lap_count if run.enabled else LAPS_WHEN_OFF,
    )

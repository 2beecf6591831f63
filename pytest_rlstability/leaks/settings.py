"""What one leak check was asked to do."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_rlstability.markers import NoLeak, read_marker
from pytest_rlstability.options import settings_of
from pytest_rlstability.signals.registry import GROUPS, expand
from pytest_rlstability.soak.settings import soak_of

LAPS_WHEN_OFF = 3


@dataclass(frozen=True)
class LeakSettings:
    """A leak check's settings: marker, options and ini in one place.

    ``LeakSettings(limit=1024, signals=("fds", "python"), checking=True)``. *limit* is what may grow per lap, in
    bytes for memory; *checking* is false where the laps are only laps.
    """

    limit: float | None = None
    signals: tuple[str, ...] | None = None
    warmup: int | None = None
    laps: int | None = None
    budget: float = 30.0
    checking: bool = False
    lap_count: int = 20
    duration: float | None = None
    """Of a soak: laps for so many seconds, however soon there is an answer."""
    every: float | None = None
    memory_limit: int | None = None

    @property
    def marker(self) -> str:
        """What asked for the check, for its messages."""
        return "rl_no_leak" if self.duration is None else "rl_soak"

    def limit_of(self, name: str, unit: str) -> float:
        """The growth per lap that signal *name* is allowed.

        The limit is a size. It is a count only where nothing but countable things is judged:
        ``rl_no_leak(limit=1, signals=["fds"])``.
        """
        if self.limit is None:
            return 0.0
        only_counts = self.signals is not None and not set(self.signals) & set(GROUPS["memory"])
        return self.limit if unit == "bytes" or only_counts else 0.0


def is_on(config: pytest.Config) -> bool:
    """Whether ``--rl-stability`` (or its ini) is on."""
    return settings_of(config).enabled


def is_whole(item: pytest.Item) -> bool:
    """Whether *item* is a leak test or a soak that does not lap itself, and so is repeated whole."""
    if "rl_laps" in getattr(item, "fixturenames", ()):
        return False
    if item.get_closest_marker("rl_no_leak") is not None:
        return True
    return item.get_closest_marker("rl_soak") is not None and soak_of(item, settings_of(item.config)) is not None


def leak_settings(config: pytest.Config, item: pytest.Item) -> LeakSettings:
    """The settings for *item*, from its markers, the command line and the ini file."""
    run, promise = settings_of(config), read_marker(item, "rl_no_leak")
    asked = promise or NoLeak()
    signals = None if asked.signals is None else expand(asked.signals)
    soak, isolated = soak_of(item, run), read_marker(item, "rl_isolated")
    return LeakSettings(
        limit=asked.limit,
        signals=signals,
        warmup=asked.warmup,
        laps=asked.laps,
        budget=run.leak_budget,
        checking=run.enabled and not (promise is None and soak is None),
        duration=None if soak is None else soak.duration,
        every=None if soak is None else soak.every,
        memory_limit=None if isolated is None else isolated.memory,
        lap_count=run.lap_count if run.enabled else LAPS_WHEN_OFF,
    )

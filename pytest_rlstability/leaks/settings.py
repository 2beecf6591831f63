"""What one leak check was asked to do."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ..markers import NoLeak, read_marker
from ..options import settings_of
from ..signals.registry import GROUPS, expand

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
    """Whether *item* is a leak test that does not lap itself, and so is repeated whole."""
    return item.get_closest_marker("rl_no_leak") is not None and "rl_laps" not in getattr(item, "fixturenames", ())


def leak_settings(config: pytest.Config, item: pytest.Item) -> LeakSettings:
    """The settings for *item*, from its ``rl_no_leak`` marker, the command line and the ini file."""
    run, promise = settings_of(config), read_marker(item, "rl_no_leak")
    asked = promise or NoLeak()
    signals = None if asked.signals is None else expand(asked.signals)
    return LeakSettings(
        limit=asked.limit,
        signals=signals,
        warmup=asked.warmup,
        laps=asked.laps,
        budget=run.leak_budget,
        checking=run.enabled and promise is not None,
        lap_count=run.lap_count if run.enabled else LAPS_WHEN_OFF,
    )

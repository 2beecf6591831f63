"""Which test is a soak, and for how long."""

from __future__ import annotations

import pytest

from pytest_rlstability.config.markers import Soak, read_marker
from pytest_rlstability.config.options import Settings

_HOLDERS_SHARE = 0.05
_LONGEST_FOR_HOLDERS = 600.0


def time_for_holders(duration: float, leak_budget: float) -> float:
    """Seconds in which the holder of what leaked is searched for after a soak: a long one gets more.

    >>> time_for_holders(60, 30), time_for_holders(8 * 3600, 30)
    (30, 600.0)
    """
    return max(leak_budget, min(_HOLDERS_SHARE * duration, _LONGEST_FOR_HOLDERS))


def soak_of(item: pytest.Item, settings: Settings) -> Soak | None:
    """The soak that *item* is in this run, or None. What ``--rl-soak`` says comes before the marker's duration."""
    marker: Soak | None = read_marker(item, "rl_soak") if settings.soak else None
    if marker is None or settings.soak_duration is None:
        return marker
    return Soak(settings.soak_duration, marker.every)

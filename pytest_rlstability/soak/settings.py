"""Which test is a soak, and for how long."""

from __future__ import annotations

import pytest

from ..markers import Soak, read_marker
from ..options import Settings


def soak_of(item: pytest.Item, settings: Settings) -> Soak | None:
    """The soak that *item* is in this run, or None. What ``--rl-soak`` says comes before the marker's duration.

    ``soak = soak_of(item, settings_of(item.config))``, then ``soak.duration`` and ``soak.every`` in seconds.
    """
    marker: Soak | None = read_marker(item, "rl_soak") if settings.soak else None
    if marker is None or settings.soak_duration is None:
        return marker
    return Soak(settings.soak_duration, marker.every)

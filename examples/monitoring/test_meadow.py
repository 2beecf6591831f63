"""A soak to look at while it lasts.

    pytest --rl-stability --rl-soak=10min --rl-metrics-port=9464 examples/monitoring/test_meadow.py

The limits here are far away, so that the alerts in ``alerts.yml`` come first, while the run still lasts.
"""

from __future__ import annotations

import os
import time

import pytest
from meadow import Meadow, class_of

FAR_AWAY = {name: {"critical": 100_000} for name in ("food", "bodies", "dynamic", "fixtures")}
LAPS_PER_SECOND = float(os.environ.get("MEADOW_LAPS_PER_SECOND", "10"))


@pytest.mark.rl_soak(duration="10min")
def test_grazing(box2d_world, rl_laps, rl_probe) -> None:
    meadow = Meadow()
    box2d_world.watch(meadow.world, classify=class_of, limits=FAR_AWAY)
    rl_probe("eaten", lambda: meadow.eaten)
    for _ in rl_laps:
        meadow.graze()
        time.sleep(1 / LAPS_PER_SECOND)

"""What other processes do: growth of what they share with the test is not a leak of the test."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from pytest_rlstability.leaks.watched import Watched
from pytest_rlstability.verdicts.leak import Judgement, LeakState

if TYPE_CHECKING:
    from pytest_rlstability.leaks.check import LeakCheck


def rule_out_others(check: LeakCheck) -> Iterator[int]:
    """Dismiss a leak that other processes could cause, unless it stops while no lap runs and goes on with laps."""
    for watched in check.leaks():
        if watched.signal.foreign and not (yield from _is_ours(check, watched)):
            watched.dismissed = "other processes make it grow"
            watched.judgement = Judgement(LeakState.CLEAN, True, reason=watched.dismissed)


def _is_ours(check: LeakCheck, watched: Watched) -> Generator[int, None, bool]:
    rate = watched.series.growth / max(check.measured_seconds, 1e-6)
    pause = min(max(0.3, 6 / rate), 3.0)
    before = watched.signal.read()
    time.sleep(pause)
    if watched.signal.read() - before > 0.25 * rate * pause:
        return False
    before, laps = watched.signal.read(), max(8, check.measured_laps // 8)
    yield from check.run_laps(laps)
    return watched.signal.read() - before >= 0.5 * watched.judgement.per_lap * laps

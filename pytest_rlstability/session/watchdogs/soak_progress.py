"""How far a running soak has come: observed from outside its process, shown in one line."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from pytest_rlstability.model.events import Progress
from pytest_rlstability.model.run import Run
from pytest_rlstability.model.soak_state import SoakState
from pytest_rlstability.model.units import format_duration, format_size
from pytest_rlstability.session.test_process import TestProcess

INTERVAL = 1.0
_PACE_OVER = 30
"""Observations that the number of laps a second is taken from."""


class SoakPulse:
    """Emits how a soak is doing, once a second.

    The laps are read from shared memory; the rest is what the soak's last sample said.
    """

    def __init__(self, run: Run, duration: float, emit: Callable[[Progress], None]) -> None:
        self._run = run
        self._start = SoakState(duration)
        self._emit = emit
        self._laps: deque[tuple[float, int]] = deque(maxlen=_PACE_OVER)
        self.due = time.monotonic()

    def observe(self, process: TestProcess) -> None:
        now = time.monotonic()
        self.due = now + INTERVAL
        self._laps.append((now, process.counters.laps))
        self._emit(
            Progress(
                test=self._run.spec.nodeid,
                soak=self._run.seen.soak or self._start,
                seconds=self._elapsed(now),
                laps=process.counters.laps,
                laps_per_second=self._pace(),
                phase=process.counters.phase,
                stage=" > ".join(self._run.seen.stages_open),
            )
        )

    def _elapsed(self, now: float) -> float:
        state = self._run.seen.soak
        return 0.0 if state is None else state.seconds + now - self._run.seen.soak_seen

    def _pace(self) -> float:
        (began, first), (ended, last) = self._laps[0], self._laps[-1]
        return (last - first) / (ended - began) if ended > began and last >= first else 0.0


def progress_line(progress: Progress) -> str:
    """One line on a running soak.

    >>> state = SoakState(duration=28800, verdict="clean", memory=2**29, memory_per_hour=2**20)
    >>> progress_line(Progress(test="t.py::test_walk", seconds=4320, laps=1203, laps_per_second=0.28, soak=state))
    'soak t.py::test_walk: 1 h 12 min of 8 h, clean so far, 512.0 MiB +1.0 MiB/h, lap 1203, 0.28/s, 6 h 48 min left'
    """
    state = progress.soak
    if progress.phase in ("start", "setup") and not progress.laps:
        return f"soak {progress.test}: setting up, then {format_duration(state.duration)} of laps"
    left = max(0.0, state.duration - progress.seconds)
    memory = format_size(state.memory)
    if state.memory_per_hour:
        memory += f" +{format_size(state.memory_per_hour)}/h"
    parts = [
        f"{format_duration(min(progress.seconds, state.duration))} of {format_duration(state.duration)}",
        state.so_far(),
        memory,
        f"lap {progress.laps}",
        f"{_rate(progress.laps_per_second)}/s",
        f"{format_duration(left)} left",
    ]  # a narrow terminal cuts off the end
    return f"soak {progress.test}: {', '.join(parts)}"


def _rate(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"

"""How far a running soak has come: noted from outside its process, said in one line."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pytest_rlstability.facts import Killed, Run
from pytest_rlstability.isolation.hub import TestProcess
from pytest_rlstability.soak.state import SoakState
from pytest_rlstability.units import format_duration, format_size

INTERVAL = 1.0
_PACE_OVER = 30
"""Notes that the number of laps a second is taken from."""


class SoakPulse:
    """A watch that never ends a test: it notes how a soak is doing, once a second.

    The laps are read from shared memory; the rest is what the soak's last sample said.
    """

    def __init__(self, run: Run, duration: float, note: Callable[[Run, dict[str, Any]], None]) -> None:
        self._run = run
        self._start = SoakState(duration)
        self._note = note
        self._laps: deque[tuple[float, int]] = deque(maxlen=_PACE_OVER)
        self.due = time.monotonic()

    def look(self, process: TestProcess) -> Killed | None:
        now = time.monotonic()
        self.due = now + INTERVAL
        self._laps.append((now, process.slot.laps))
        self._note(
            self._run,
            {
                "seconds": self._elapsed(now),
                "laps": process.slot.laps,
                "laps_per_second": self._pace(),
                "phase": process.slot.phase,
                "stage": " > ".join(self._run.stages_open),
                "soak": (self._start if self._run.soak is None else self._run.soak).to_dict(),
            },
        )
        return None

    def _elapsed(self, now: float) -> float:
        state = self._run.soak
        return 0.0 if state is None else state.seconds + now - self._run.soak_heard

    def _pace(self) -> float:
        (began, first), (ended, last) = self._laps[0], self._laps[-1]
        return (last - first) / (ended - began) if ended > began and last >= first else 0.0


def progress_line(test: str, note: Mapping[str, Any]) -> str:
    """One line on a running soak.

    >>> state = SoakState(duration=28800, verdict="clean", memory=2**29, memory_per_hour=2**20).to_dict()
    >>> note = {"phase": "call", "seconds": 4320, "laps": 1203, "laps_per_second": 0.28, "soak": state}
    >>> progress_line("t.py::test_walk", note)
    'soak t.py::test_walk: 1 h 12 min of 8 h, 6 h 48 min left, lap 1203, 0.28/s, 512.0 MiB +1.0 MiB/h, clean so far'
    """
    state = SoakState.from_dict(note["soak"])
    if note["phase"] in ("start", "setup") and not note["laps"]:
        return f"soak {test}: setting up, then {format_duration(state.duration)} of laps"
    left = max(0.0, state.duration - note["seconds"])
    memory = format_size(state.memory)
    if state.memory_per_hour:
        memory += f" +{format_size(state.memory_per_hour)}/h"
    parts = [
        f"{format_duration(min(note['seconds'], state.duration))} of {format_duration(state.duration)}",
        f"{format_duration(left)} left",
        f"lap {note['laps']}",
        f"{_rate(note['laps_per_second'])}/s",
        memory,
        state.so_far(),
    ]
    return f"soak {test}: {', '.join(parts)}"


def _rate(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"

"""The soaks of a run: which are under way, what those that ended came to, and what to say of those cut short."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_rlstability.events import event
from pytest_rlstability.soak.state import SoakState
from pytest_rlstability.units import format_duration

_SHOWN = 20


class SoakBook:
    """Hears events and notes; ``cut_short()`` gives the ``finished`` events of soaks that never came to their own."""

    def __init__(self) -> None:
        self._running: dict[str, Mapping[str, Any]] = {}
        self._lines: list[str] = []

    def note(self, test: str, note: Mapping[str, Any]) -> None:
        self._running[test] = note

    def hear(self, told: Mapping[str, Any]) -> None:
        if told["event"] != "finished":
            return
        self._running.pop(told["test"], None)
        if told.get("soak"):
            state = SoakState.from_dict(told["soak"])
            words = state.lines()
            if told["outcome"] == "interrupted":
                words = [f"interrupted, {state.so_far()}", *words]
            self._lines.append(f"soak {told['test']}: {'; '.join(words)}")

    def cut_short(self) -> list[dict[str, object]]:
        """The run ends here: what is known of every soak that was still going on."""
        running, self._running = self._running, {}
        return [self._interrupted(test, note) for test, note in running.items()]

    def lines(self) -> list[str]:
        """A closing line for each soak."""
        more = len(self._lines) - _SHOWN
        return [*self._lines[:_SHOWN], *([f"... and {more} more soaks"] if more > 0 else [])]

    def _interrupted(self, test: str, note: Mapping[str, Any]) -> dict[str, object]:
        state = SoakState.from_dict(note["soak"])
        seconds = min(note["seconds"], state.duration)
        text = f"interrupted after {format_duration(seconds)} in lap {note['laps']}, {state.so_far()}"
        return event(
            "finished",
            test,
            outcome="interrupted",
            duration=note["seconds"],
            laps=note["laps"],
            stages=[note["stage"]] if note["stage"] else [],
            verdict=None,
            report=text,
            soak={**note["soak"], "seconds": seconds, "laps": note["laps"]},
            host=note["host"],
            worker=note["worker"],
        )

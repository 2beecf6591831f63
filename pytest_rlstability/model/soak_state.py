"""The state of a soak: sent with every sample, and kept with the finished test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pytest_rlstability.model.units import format_duration, format_size


@dataclass(frozen=True)
class SoakState:
    """A soak at one moment, in JSON values. *verdict* is empty while it is too early for one, *per_lap* has the signals
    that grow, *hours_to_limit* is None while memory does not grow."""

    duration: float
    seconds: float = 0.0
    laps: int = 0
    verdict: str = ""
    growing: str = ""
    per_lap: dict[str, float] = field(default_factory=dict)
    memory: float = 0.0
    memory_per_hour: float = 0.0
    hours_to_limit: float | None = None
    limit: str = ""
    lap_seconds_first: float = 0.0
    lap_seconds_last: float = 0.0
    laps_drift: bool = False
    ended_early: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SoakState:
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})

    def so_far(self) -> str:
        """The verdict in a few words: ``clean so far``, ``LEAK so far: open descriptors +1 per lap``."""
        if not self.verdict:
            return "too early to say"
        return f"{self.verdict} so far" + (f": {self.growing}" if self.growing else "")

    def lines(self) -> list[str]:
        """The lines for the report at the end."""
        lines = [
            f"{format_duration(self.seconds)} of {format_duration(self.duration)}, {self.laps} laps"
            + (" (ended early: going on would have starved the machine)" if self.ended_early else ""),
            self._pace_text(),
            self._memory_text(),
        ]
        return [line for line in lines if line]

    def _pace_text(self) -> str:
        first, last = format_duration(self.lap_seconds_first), format_duration(self.lap_seconds_last)
        if not self.laps_drift:
            return f"laps steady at {last}" if self.lap_seconds_last else ""
        word = "slowed" if self.lap_seconds_last > self.lap_seconds_first else "quickened"
        return f"laps {word} from {first} to {last}"

    def _memory_text(self) -> str:
        if not self.memory:
            return ""
        text = f"memory {format_size(self.memory)}"
        if self.memory_per_hour:
            text += f", {format_size(self.memory_per_hour)} more per hour"
        if self.hours_to_limit is not None:
            text += f": {self.limit} would be used up in about {format_duration(self.hours_to_limit * 3600)}"
        return text

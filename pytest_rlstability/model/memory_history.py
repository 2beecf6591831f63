"""The course of a test's memory as its samples told it, for the report of a test that cannot tell any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from pytest_rlstability.leaks.series import Series, sparkline
from pytest_rlstability.units import format_duration, format_size

NEWEST = 8
_WIDTH = 32


class MemoryHistory:
    """Takes in samples and keeps few: the newest as they were, all of them merged into one course.

    ``history.add({"lap": 7, "seconds": 1.5, "values": {"rss": 4e8}})``, then ``history.text()``.
    """

    def __init__(self) -> None:
        self._newest: deque[tuple[float, int, float]] = deque(maxlen=NEWEST)
        self._course: Series | None = None

    def add(self, sample: Mapping[str, Any]) -> None:
        memory = sample.get("values", {}).get("rss")
        if memory is None:
            return
        seconds, lap = float(sample.get("seconds", 0.0)), int(sample.get("lap", 0))
        if self._course is None:
            self._course = Series(256)
        self._course.add(seconds, memory)
        self._newest.append((seconds, lap, memory))

    def text(self) -> str:
        """The whole course in a line, and a line for each of the newest samples; empty with fewer than two."""
        if self._course is None or len(self._course) < 2:
            return ""
        first, last = self._course.values[0], self._course.last
        lines = [f"{format_size(first)} {sparkline(self._course.values, _WIDTH)} {format_size(last)} resident"]
        for seconds, lap, memory in self._newest:
            lines.append(f"after {format_duration(seconds):>12}  lap {lap:>8}  {format_size(memory):>10}")
        return "\n".join(lines)

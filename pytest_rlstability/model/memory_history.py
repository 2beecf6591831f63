"""The memory of a test over time, for the report of a test that died."""

from __future__ import annotations

from collections import deque

from pytest_rlstability.model.series import Series, sparkline
from pytest_rlstability.model.units import format_duration, format_size

NEWEST = 8
_WIDTH = 32
_POINTS = 2 * _WIDTH


class MemoryHistory:
    """Keeps the newest samples, and a thinned series of all."""

    def __init__(self) -> None:
        self._newest: deque[tuple[float, int, float]] = deque(maxlen=NEWEST)
        self._course = Series(_POINTS)

    def add(self, seconds: float, lap: int, memory: float) -> None:
        self._course.add(seconds, memory)
        self._newest.append((seconds, lap, memory))

    def text(self) -> str:
        """A line with a chart of all samples, and one for each of the newest; empty with fewer than two samples."""
        if len(self._course) < 2:
            return ""
        first, last = self._course.values[0], self._course.last
        lines = [f"{format_size(first)} {sparkline(self._course.values, _WIDTH)} {format_size(last)} resident"]
        for seconds, lap, memory in self._newest:
            lines.append(f"after {format_duration(seconds):>12}  lap {lap:>8}  {format_size(memory):>10}")
        return "\n".join(lines)

"""Which line of the user's code makes a signal rise: it is read before and after each line of a few laps."""

from __future__ import annotations

import linecache
import os
import sys
import tracemalloc
import types
from collections.abc import Callable
from typing import Any, Self

from pytest_rlstability.model.user_code import Origin, origin, outwards

Line = tuple[str, int]


def show_line(filename: str, number: int) -> str:
    """``train.py:12: buffer.append(frame)``."""
    text = linecache.getline(filename, number).strip()
    return f"{os.path.basename(filename)}:{number}{': ' + text if text else ''}"


def users_line(traceback: tracemalloc.Traceback | None) -> Line | None:
    """The innermost line of the user's code that led to an allocation; None for our own allocations."""
    if traceback is None:
        return None
    frames = list(traceback)
    if not frames or origin(frames[-1].filename) is Origin.OURS or frames[-1].filename == tracemalloc.__file__:
        return None
    for frame in reversed(frames):
        if origin(frame.filename) is Origin.USER:
            return frame.filename, frame.lineno
    return frames[-1].filename, frames[-1].lineno


class LineMeter:
    """Adds up, for each line of the user's code, how much a number rose while the line and its calls ran.

    ``with LineMeter(read) as meter: ...laps...``, then ``meter.best(per_lap, laps)``.
    """

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self._rises: dict[Line, float] = {}
        self._current: Line | None = None
        self._value = 0.0
        self._previous: Any = None

    def __enter__(self) -> Self:
        self._previous = sys.gettrace()
        self._value = self._read()
        for frame in outwards(sys._getframe(1)):
            if origin(frame.f_code.co_filename) is Origin.USER:
                frame.f_trace = self._trace
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._previous)
        for frame in outwards(sys._getframe(1)):
            if frame.f_trace == self._trace:
                frame.f_trace = None

    def best(self, per_lap: float, laps: int) -> Line | None:
        """The line whose rise is nearest to the growth *per_lap*. What is released later rises by more than that."""
        likely = {line: rise for line, rise in self.rises(laps).items() if rise >= 0.3 * per_lap}
        return min(likely, key=lambda line: abs(likely[line] - per_lap), default=None)

    def rises(self, laps: int) -> dict[Line, float]:
        """The rise per lap of each line that has one."""
        return {line: rise / laps for line, rise in self._rises.items() if rise > 0}

    def _trace(self, frame: types.FrameType, event: str, argument: object) -> Any:
        filename = frame.f_code.co_filename
        if origin(filename) is not Origin.USER:
            return None
        value = self._read()
        if self._current is not None:
            self._rises[self._current] = self._rises.get(self._current, 0.0) + value - self._value
        self._value = value
        self._current = (filename, frame.f_lineno)
        if event == "return":  # the caller's line goes on, also if a library is in between
            callers = ((one.f_code.co_filename, one.f_lineno) for one in outwards(frame.f_back))
            self._current = next((line for line in callers if origin(line[0]) is Origin.USER), None)
        return self._trace

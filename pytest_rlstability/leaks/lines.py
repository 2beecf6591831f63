"""Which of the user's lines makes a signal rise: the signal is read before and after each line of a few laps."""

from __future__ import annotations

import ctypes
import linecache
import os
import sys
import sysconfig
import tracemalloc
import types
from collections.abc import Callable
from typing import Any

Line = tuple[str, int]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple(
    os.path.realpath(sysconfig.get_paths()[name]) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_MANAGED_DICT = 1 << 4
_BEFORE_OBJECT = 4 * ctypes.sizeof(ctypes.c_void_p)
"""The collector's two words and the two for the dict."""
_frames_of: Any = getattr(ctypes.pythonapi, "_PyTraceMalloc_GetTraceback", None)
if _frames_of is not None:
    _frames_of.restype = ctypes.py_object
    _frames_of.argtypes = [ctypes.c_uint, ctypes.c_size_t]


def is_users(filename: str) -> bool:
    """Whether *filename* is neither Python's, an installed package's, nor ours."""
    if filename.startswith("<"):
        return False
    return not os.path.realpath(filename).startswith((*_LIBRARIES, _PACKAGE + os.sep))


def show_line(filename: str, number: int) -> str:
    """``train.py:12: buffer.append(frame)``."""
    text = linecache.getline(filename, number).strip()
    return f"{os.path.basename(filename)}:{number}{': ' + text if text else ''}"


def users_line(traceback: tracemalloc.Traceback | None) -> Line | None:
    """The innermost line of the user's that led to an allocation; None for what is ours."""
    if traceback is None:
        return None
    frames = list(traceback)
    if not frames or "rlstability" in frames[-1].filename or frames[-1].filename == tracemalloc.__file__:
        return None
    for frame in reversed(frames):
        if is_users(frame.filename):
            return frame.filename, frame.lineno
    return frames[-1].filename, frames[-1].lineno


def traceback_of(thing: object) -> tracemalloc.Traceback | None:
    """Where *thing* was made, also when it has a ``__dict__``, for which Python 3.11 looks in the wrong place."""
    found = tracemalloc.get_object_traceback(thing)
    if found is None and type(thing).__flags__ & _MANAGED_DICT and _frames_of is not None:
        frames = _frames_of(0, id(thing) - _BEFORE_OBJECT)
        return tracemalloc.Traceback(frames) if frames else None
    return found


class LineMeter:
    """Adds up, for each line of the user's code, how much a number rose while it ran, whatever it called.

    ``meter = LineMeter(read); meter.start(); ...laps...; meter.stop(); meter.best(per_lap, laps)``.
    """

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self._users: dict[str, bool] = {}
        self._rises: dict[Line, float] = {}
        self._current: Line | None = None
        self._value = 0.0
        self._previous: Any = None

    def start(self) -> None:
        self._previous = sys.gettrace()
        self._value = self._read()
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            if is_users(frame.f_code.co_filename):
                frame.f_trace = self._trace
            frame = frame.f_back
        sys.settrace(self._trace)

    def stop(self) -> None:
        sys.settrace(self._previous)
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_trace == self._trace:
                frame.f_trace = None
            frame = frame.f_back

    def best(self, per_lap: float, laps: int) -> Line | None:
        """The line whose rise is nearest to the growth that was measured; what is given back later is not."""
        rises = self.rises(laps)
        likely = {line: rise for line, rise in rises.items() if rise >= 0.3 * per_lap}
        if not likely:
            return None
        return min(likely, key=lambda line: abs(likely[line] - per_lap))

    def rises(self, laps: int) -> dict[Line, float]:
        """By how much each line that makes it rise did so per lap."""
        return {line: rise / laps for line, rise in self._rises.items() if rise > 0}

    def _trace(self, frame: types.FrameType, event: str, argument: object) -> Any:
        filename = frame.f_code.co_filename
        users = self._users.get(filename)
        if users is None:
            users = self._users[filename] = is_users(filename)
        if not users:
            return None
        value = self._read()
        if self._current is not None:
            self._rises[self._current] = self._rises.get(self._current, 0.0) + value - self._value
        self._value = value
        self._current = self._caller(frame) if event == "return" else (filename, frame.f_lineno)
        return self._trace

    def _caller(self, frame: types.FrameType) -> Line | None:
        """The line of the user's that goes on now, maybe through a library that had called back."""
        back = frame.f_back
        while back is not None and not self._users.get(back.f_code.co_filename):
            back = back.f_back
        return None if back is None else (back.f_code.co_filename, back.f_lineno)

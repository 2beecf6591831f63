"""Which line of the user's code makes a signal rise or takes native memory: a few laps are traced."""

from __future__ import annotations

import os
import sys
import tempfile
import tracemalloc
import types
from collections.abc import Callable, Generator
from typing import Any, Self

from pytest_rlstability.model.statements import statement_at
from pytest_rlstability.model.user_code import Origin, origin, outwards, relative_path

Line = tuple[str, int]
_NATIVE_FRAMES = 6


def show_line(filename: str, number: int) -> str:
    """``game/env.py:12: buffer.append(frame)``: the user's files from the current directory on, of others the name."""
    text = statement_at(filename, number)
    shown = relative_path(filename) if origin(filename) is Origin.USER else filename
    return f"{os.path.basename(shown) if os.path.isabs(shown) else shown}:{number}{': ' + text if text else ''}"


def users_line(traceback: tracemalloc.Traceback | None) -> Line | None:
    """The innermost line of the user's code that led to an allocation; None for what we or pytest allocate."""
    if traceback is None:
        return None
    frames = list(traceback)
    if not frames or origin(frames[-1].filename) is Origin.OURS or frames[-1].filename == tracemalloc.__file__:
        return None
    users = next((frame for frame in reversed(frames) if origin(frame.filename) is Origin.USER), None)
    if users is None and origin(frames[-1].filename) is Origin.PYTEST:
        return None
    last = users or frames[-1]
    return last.filename, last.lineno


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


def native_stack(laps: int) -> Generator[int, None, tuple[list[str], Line | None]]:
    """Asks for *laps* laps. Returns the stack, innermost first, of the largest allocation that at least every tenth
    of them left behind, and the user's line that led to it.

    There is none without memray, or with torch: naming libtorch's functions would take half a minute.
    """
    if "torch" in sys.modules:
        return [], None
    try:
        import memray
    except ImportError:
        return [], None
    with tempfile.TemporaryDirectory(prefix="rlstability-memray-") as directory:
        path = os.path.join(directory, "window.bin")
        with memray.Tracker(path, native_traces=True):
            yield laps
        leaked = memray.FileReader(path).get_leaked_allocation_records(merge_threads=True)
        records = [record for record in leaked if record.n_allocations >= max(2, laps // 10)]
        for record in sorted(records, key=lambda record: -record.size):
            lines = ((file, line) for _, file, line in record.stack_trace(_NATIVE_FRAMES * 4))
            if users := next((line for line in lines if origin(line[0]) is Origin.USER), None):
                stack = record.hybrid_stack_trace(_NATIVE_FRAMES * 4)[:_NATIVE_FRAMES]
                return [f"{name} ({file}:{line})" for name, file, line in stack], users
    return [], None

"""Writes this process's Python stacks to a file every few seconds, where no signal can ask for them.

A thread writes them: it holds the GIL, so no other thread moves meanwhile. faulthandler's watchdog, which needs no GIL,
reads threads as they run, and that may crash them. So it only gets its turn when this thread has not had its own for
some time: then native code keeps the GIL, and no Python thread moves either.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Iterator
from contextlib import suppress
from faulthandler import cancel_dump_traceback_later as cancel_later  # bound here: a test may replace them
from faulthandler import dump_traceback_later as write_later
from os import ftruncate as cut_file
from os import write
from pathlib import Path
from sys import _current_frames as current_frames
from types import FrameType

from pytest_rlstability.osinfo.timed_stacks import TIMED, open_to_append

_PATIENCE = 1.0
"""Seconds that this thread waits for the GIL at the least: it may be the turn of many threads before."""
_MOST_FRAMES = 100


class StackWriter:
    """``every(seconds)`` begins with an empty file; with 0 nothing is written."""

    def __init__(self, path: Path) -> None:
        self._file = open_to_append(path)
        self._seconds = 0.0
        self._changed = allocate_lock()
        self._changed.acquire()
        self._ended = False
        self._is_running = False

    def every(self, seconds: float) -> None:
        if seconds:
            cut_file(self._file, 0)
        self._seconds = seconds
        self._set_watchdog(seconds)
        if seconds and not self._is_running:
            self._is_running = True
            start_new_thread(self._work, ())
        self._wake()

    def end(self) -> None:
        """The interpreter is about to end, and this thread with it."""
        self._ended = True
        if self._seconds:
            write_later(self._seconds, file=self._file)
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # it has not seen the last change yet
            self._changed.release()

    def _set_watchdog(self, seconds: float) -> None:
        if seconds:
            write_later(seconds + max(seconds, _PATIENCE), file=self._file)
        else:
            cancel_later()

    def _work(self) -> None:
        while not self._ended:
            seconds = self._seconds
            self._set_watchdog(seconds)
            if not self._changed.acquire(True, seconds or -1) and not self._ended:
                write(self._file, "".join(_dump()).encode(errors="replace"))


def _dump() -> Iterator[str]:
    """The stacks of all threads but this one, as faulthandler writes them."""
    own = get_ident()
    yield f"{TIMED.decode()}by a thread)!\n"
    for ident, frame in current_frames().items():
        if ident != own:
            yield f"Thread 0x{ident:x} (most recent call first):\n"
            yield from _lines(frame)
            yield "\n"


def _lines(frame: FrameType | None) -> Iterator[str]:
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        code = frame.f_code
        yield f'  File "{code.co_filename}", line {frame.f_lineno or "???"} in {code.co_name}\n'
        frame = frame.f_back
    yield "  ...\n"

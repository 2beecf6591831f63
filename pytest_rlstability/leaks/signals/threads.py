"""Threads of this process, native ones included where the system lists them."""

from __future__ import annotations

import os
import sys
import threading
import traceback

from pytest_rlstability.signals.protocol import Signal


def _where(ident: int | None) -> str:
    frame = sys._current_frames().get(ident or 0)
    if frame is None:
        return "in native code"
    stack = [entry for entry in traceback.extract_stack(frame) if not entry.filename.endswith("threading.py")]
    place = stack[-1] if stack else traceback.extract_stack(frame)[-1]
    return f"in {place.name} at {os.path.basename(place.filename)}:{place.lineno}"


def _started_for(thread: threading.Thread) -> str:
    target = getattr(thread, "_target", None)
    name = getattr(target, "__qualname__", None)
    return f", target {name}" if name else ""


class Threads(Signal):
    name = "threads"
    title = "threads"
    ceiling = 512.0
    exact = True

    def __init__(self) -> None:
        self._tasks = "/proc/self/task" if os.path.isdir("/proc/self/task") else None

    def read(self) -> float:
        return len(os.listdir(self._tasks)) if self._tasks else threading.active_count()

    def inventory(self) -> dict[str, str]:
        known = {str(thread.native_id): thread for thread in threading.enumerate()}
        numbers = os.listdir(self._tasks) if self._tasks else list(known)
        found = {}
        for number in numbers:
            thread = known.get(number)
            if thread is None:
                found[number] = f"native thread {number}"
            else:
                found[number] = f"thread {thread.name}{_started_for(thread)}, {_where(thread.ident)}"
        return found

"""Threads of this process, with native ones where the system lists them."""

from __future__ import annotations

import os
import sys
import threading
import traceback

from pytest_rlstability.compat.cpython import thread_target
from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo.linux import own_threads


def _where(ident: int | None) -> str:
    frame = sys._current_frames().get(ident or 0)
    if frame is None:
        return "in native code"
    stack = [entry for entry in traceback.extract_stack(frame) if not entry.filename.endswith("threading.py")]
    place = stack[-1] if stack else traceback.extract_stack(frame)[-1]
    return f"in {place.name} at {os.path.basename(place.filename)}:{place.lineno}"


def _describe(thread: threading.Thread) -> str:
    target = getattr(thread_target(thread), "__qualname__", None)
    return f"thread {thread.name}{f', target {target}' if target else ''}, {_where(thread.ident)}"


class Threads(Signal):
    name = "threads"
    title = "threads"
    ceiling = 512.0
    exact = True

    def __init__(self) -> None:
        self._sees_native = bool(own_threads())

    def read(self) -> float:
        return len(own_threads()) if self._sees_native else threading.active_count()

    def inventory(self) -> dict[str, str]:
        known = {str(thread.native_id): thread for thread in threading.enumerate()}
        numbers = own_threads() if self._sees_native else list(known)
        return {one: _describe(known[one]) if one in known else f"native thread {one}" for one in numbers}

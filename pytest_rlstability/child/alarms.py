"""Notes when a test's own alarm will go off, and its sleeps end: no other process can see that, or only on Linux."""

from __future__ import annotations

import functools
import signal
import sys
import time
from collections.abc import Callable
from time import sleep as sleep_for  # bound here: a test may replace it
from typing import Any

from pytest_rlstability.osinfo.fatal_signals import STACKS_SIGNAL

Note = Callable[[float, bool], None]
"""Called with the seconds until an alarm goes off, 0 for never, and whether it does so again and again."""


def report_alarms(note: Note) -> None:
    """Call *note* when anything but pytest-timeout sets or cancels an alarm. Code that imported the function by name
    earlier is not noticed."""
    if hasattr(signal, "alarm"):
        signal.alarm = _noted(signal.alarm, lambda seconds: note(seconds, False))
    if hasattr(signal, "setitimer"):
        signal.setitimer = _noted(signal.setitimer, functools.partial(_note_timer, note))


def report_sleeps(note: Callable[[float], None]) -> None:
    """Call *note* with the seconds of each sleep that begins, where the system does not show how long it takes. Code
    that imported the function by name earlier is not noticed."""

    @functools.wraps(sleep_for)
    def sleep(seconds: Any, /) -> None:
        if isinstance(seconds, (int, float)) and seconds > 0:
            note(seconds)
        sleep_for(seconds)

    if STACKS_SIGNAL is None:
        vars(time)["sleep"] = sleep


def _note_timer(note: Note, which: int, seconds: float, interval: float = 0.0) -> None:
    if sys.platform != "win32" and which == signal.ITIMER_REAL:
        note(seconds, interval > 0)


def _noted(original: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*arguments: Any) -> Any:
        before = original(*arguments)  # raises where nothing is set
        if sys._getframe(1).f_globals.get("__name__") != "pytest_timeout":
            note(*arguments)
        return before

    return call

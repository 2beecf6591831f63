"""Whether a test has set an alarm of its own, which no other process can see."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable
from typing import Any

_SETTERS = ("alarm", "setitimer")


def announce_alarms(tell: Callable[[], None]) -> None:
    """Call *tell* when anything but pytest-timeout sets an alarm. What imported the function by name before is not
    heard."""
    for name in _SETTERS:
        original = getattr(signal, name, None)
        if original is not None:
            setattr(signal, name, _announced(original, tell))


def _announced(original: Callable[..., Any], tell: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*arguments: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__") != "pytest_timeout":
            tell()
        return original(*arguments)

    return call

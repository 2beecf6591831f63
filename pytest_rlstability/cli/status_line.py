"""How far a command is: a line of the terminal that is rewritten in place. Nothing is written to a file or pipe."""

from __future__ import annotations

import shutil
import sys
import time

from pytest_rlstability.model.units import escaped, format_duration


class StatusLine:
    """``status.show("reading model.zip")``; ``status.clear()`` before something else is printed."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, text: str) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            line = escaped(text)[: shutil.get_terminal_size().columns - 1]
            print(f"\r{line:<{self._shown}}", end="", file=sys.stderr, flush=True)
            self._shown = len(line)

    def clear(self) -> None:
        if self._shown:
            print(f"\r{'':<{self._shown}}\r", end="", file=sys.stderr, flush=True)
            self._shown = 0


class Estimate:
    """How long a number of steps will still take, from those that are done."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._done = 0
        self._began = time.monotonic()

    def step_done(self) -> None:
        self._done += 1

    def __str__(self) -> str:
        return estimate_text(self._done, self._steps, time.monotonic() - self._began)


def estimate_text(done: int, steps: int, seconds: float) -> str:
    """
    >>> estimate_text(0, 25, 0.0), estimate_text(5, 25, 10.0), estimate_text(26, 25, 10.0)
    ('step 1 of 25', 'step 6 of 25, 10 s so far, about 40 s left', 'step 27, 10 s so far')
    """
    if done >= steps:
        return f"step {done + 1}, {format_duration(seconds)} so far"
    if not done:
        return f"step 1 of {steps}"
    left = seconds / done * (steps - done)
    return f"step {done + 1} of {steps}, {format_duration(seconds)} so far, about {format_duration(left)} left"

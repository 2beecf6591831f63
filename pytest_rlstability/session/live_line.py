"""What is shown while a run goes on: one line that is rewritten in place, or one a minute where that cannot be."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pytest_rlstability.soak.progress import progress_line

A_MINUTE = 60.0
_REDRAW = 0.5
_TURN = 3.0
"""Seconds that each of several running soaks has the line."""


class LiveLine:
    """The terminal's line on running soaks. ``show(test, note)`` as notes come, ``clear()`` before others write."""

    def __init__(
        self, reporter: pytest.TerminalReporter, *, in_place: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reporter = reporter
        self._in_place = in_place
        self._clock = clock
        self._running: dict[str, Mapping[str, Any]] = {}
        self._written: dict[str, float] = {}
        self._drawn_at = float("-inf")
        self._drawn = False

    def show(self, test: str, note: Mapping[str, Any]) -> None:
        self._running[test] = note
        if self._in_place:
            self._draw()
        else:
            self._write(test, note)

    def end(self, test: str) -> None:
        """The soak is over."""
        self._running.pop(test, None)
        self._written.pop(test, None)

    def clear(self) -> None:
        """Leave the line to others."""
        if self._drawn:
            self._drawn = False
            self._reporter.rewrite("", erase=True)
            self._reporter.write("\r", flush=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self._reporter.ensure_newline()
        self._reporter.write_line(text)

    def _write(self, test: str, note: Mapping[str, Any]) -> None:
        now = self._clock()
        if now - self._written.get(test, float("-inf")) >= A_MINUTE:
            self._written[test] = now
            self.say(progress_line(test, note))

    def _draw(self) -> None:
        now = self._clock()
        if now - self._drawn_at < _REDRAW:
            return
        self._drawn_at = now
        tests = list(self._running)
        turn = int(now / _TURN) % len(tests)
        text = progress_line(tests[turn], self._running[tests[turn]])
        if len(tests) > 1:
            text = f"[{turn + 1}/{len(tests)}] {text}"
        if not self._drawn:
            self._reporter.ensure_newline()
            self._drawn = True
        width = self._reporter._tw.fullwidth - 1
        self._reporter.rewrite(text if len(text) <= width else f"{text[: width - 1]}…", erase=True)
        self._reporter.flush()


def live_line(config: pytest.Config) -> LiveLine | None:
    """The live line of this run; None where nobody wants one (``-qq``) or there is no terminal reporter."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or config.option.verbose <= -2:
        return None
    return LiveLine(reporter, in_place=reporter.isatty)

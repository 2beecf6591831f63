"""The progress of running soaks: one line of the terminal that is rewritten in place, or a line a minute in a file."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pytest_rlstability.model.events import Event, Finished, Progress, Slow
from pytest_rlstability.session.watchdogs.soak_progress import progress_line

A_MINUTE = 60.0
_REDRAW = 0.5
_TURN = 3.0
"""Seconds for which the line shows one of several running soaks."""


class LiveLine:
    """Call ``handle(event)`` for each event, and ``clear()`` before something else is written."""

    def __init__(
        self, reporter: pytest.TerminalReporter, *, in_place: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reporter = reporter
        self._in_place = in_place
        self._clock = clock
        self._running: dict[str, Progress] = {}
        self._written: dict[str, float] = {}
        self._drawn_at = float("-inf")
        self._drawn = False

    def handle(self, event: Event) -> None:
        match event:
            case Progress():
                self._running[event.test] = event
                if self._in_place:
                    self._draw()
                else:
                    self._write(event)
            case Slow():
                self._write_line(f"SLOW {event.test}: {event.text}")
            case Finished():
                self._running.pop(event.test, None)
                self._written.pop(event.test, None)

    def clear(self) -> None:
        """Erase the line."""
        if self._drawn:
            self._drawn = False
            self._reporter.rewrite("", erase=True)
            self._reporter.write("\r", flush=True)

    def _write_line(self, text: str) -> None:
        self.clear()
        self._reporter.ensure_newline()
        self._reporter.write_line(text)

    def _write(self, progress: Progress) -> None:
        now = self._clock()
        if now - self._written.get(progress.test, float("-inf")) >= A_MINUTE:
            self._written[progress.test] = now
            self._write_line(progress_line(progress))

    def _draw(self) -> None:
        now = self._clock()
        if now - self._drawn_at < _REDRAW:
            return
        self._drawn_at = now
        running = list(self._running.values())
        turn = int(now / _TURN) % len(running)
        text = progress_line(running[turn])
        if len(running) > 1:
            text = f"[{turn + 1}/{len(running)}] {text}"
        if not self._drawn:
            self._reporter.ensure_newline()
            self._drawn = True
        width = self._reporter.config.get_terminal_writer().fullwidth - 1
        self._reporter.rewrite(text if len(text) <= width else f"{text[: width - 1]}…", erase=True)
        self._reporter.flush()


def live_line(config: pytest.Config) -> LiveLine | None:
    """The live line of this run; None with ``-qq`` or without a terminal reporter."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or config.option.verbose <= -2:
        return None
    return LiveLine(reporter, in_place=reporter.isatty)

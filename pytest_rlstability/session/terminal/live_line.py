"""The progress of soaks, leak checks, repeated tests and searches: one line of the terminal that is rewritten in place,
or a line now and then in a file."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pytest_rlstability.model.events import Busy, Event, Finished, Progress, Sample, Slow
from pytest_rlstability.model.units import format_duration
from pytest_rlstability.session.watchdogs.soak_progress import progress_line

A_MINUTE = 60.0
A_WHILE = 20.0
SOON = 5.0
"""A file gets a line about a leak check, or whatever else takes long, after this time, and then now and then."""
_NAME = 12
"""So much of a test's name stays in a narrow terminal."""
_REDRAW = 0.5
_TURN = 3.0
"""Seconds for which the line shows one of several running tests."""


class LiveLine:
    """Call ``handle(event)`` for each event, and ``clear()`` before something else is written."""

    def __init__(
        self, reporter: pytest.TerminalReporter, *, in_place: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reporter = reporter
        self._in_place = in_place
        self._clock = clock
        self._running: dict[str, str] = {}
        """The newest line about each running test."""
        self._written: dict[str, float] = {}
        self._drawn_at = float("-inf")
        self._drawn = False

    def handle(self, event: Event) -> None:
        match event:
            case Progress():
                self._show(event.test, progress_line(event), A_MINUTE)
            case Sample(waits_for=str()):
                self._written.setdefault(event.test, self._clock() - A_WHILE + SOON)
                self._show(event.test, check_line(event), A_WHILE)
            case Busy():
                self._written.setdefault(event.test, self._clock() - A_WHILE + SOON)
                self._show(event.test, event.text, A_WHILE)
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

    def _show(self, test: str, line: str, interval: float) -> None:
        self._running[test] = line
        now = self._clock()
        if self._in_place:
            self._draw()
        elif now - self._written.get(test, float("-inf")) >= interval:
            self._written[test] = now
            self._write_line(line)

    def _draw(self) -> None:
        now = self._clock()
        if now - self._drawn_at < _REDRAW:
            return
        self._drawn_at = now
        running = list(self._running.items())
        turn = int(now / _TURN) % len(running)
        test, text = running[turn]
        if len(running) > 1:
            text = f"[{turn + 1}/{len(running)}] {text}"
        if not self._drawn:
            self._reporter.ensure_newline()
            self._drawn = True
        width = self._reporter.config.get_terminal_writer().fullwidth - 1
        self._reporter.rewrite(fitted(text, test, width), erase=True)
        self._reporter.flush()


def fitted(text: str, test: str, width: int) -> str:
    """*text* in *width* characters: the name of the *test* gives way first, then the end.

    >>> fitted("soak tests/a.py::test_walk: 2 h of 8 h, clean so far", "tests/a.py::test_walk", 42)
    'soak …test_walk: 2 h of 8 h, clean so far'
    """
    if len(text) > width and test:
        name = test.rpartition("::")[2]
        shown = f"…{name[-max(_NAME, len(name) - (len(text) - len(test) + len(name) + 1 - width)) :]}"
        text = text.replace(test, shown, 1)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def check_line(sample: Sample) -> str:
    """One line on a running leak check.

    >>> check_line(Sample(test="t.py::test_reset", values={}, lap=340, seconds=4.2, waits_for="threads: more laps"))
    'leak check t.py::test_reset: lap 340, 4.2 s, waits for threads: more laps'
    """
    if "run_passed" in sample.values:
        return f"rl_flaky {sample.test}: {sample.waits_for}"
    return (
        f"leak check {sample.test}: lap {sample.lap}, {format_duration(sample.seconds or 0.0)}, "
        f"waits for {sample.waits_for}"
    )


def live_line(config: pytest.Config) -> LiveLine | None:
    """The live line of this run; None with ``-qq`` or without a terminal reporter."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or config.option.verbose <= -2:
        return None
    return LiveLine(reporter, in_place=reporter.isatty)

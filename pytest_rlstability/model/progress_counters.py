"""Counters of each test process, in memory that it shares with pytest's process: for what changes too often to send."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

PROCESSES = 64
_CELLS = 8
_BYTES = _CELLS * 8
_BEATS, _LAP, _PHASE, _PHASE_ENTERED, _BEATS_AT_PAUSE, _ALARM, _SLEEP, _OTHER_SLEEP = range(_CELLS)
_FOREVER = (1 << 64) - 1
_ANSWER = 500_000_000
"""Nanoseconds that an alarm's handler has to begin."""

_clock = (time.monotonic_ns,)
"""The same in all processes. In a tuple, because a test may replace the clocks of every module that it finds."""

PHASES = ("start", "setup", "call", "teardown", "exit", "import")


class ProcessCounters:
    """The counters of one process. Writing one costs about a tenth of a microsecond and survives any crash."""

    __slots__ = ("_cells",)

    def __init__(self, cells: memoryview) -> None:
        self._cells = cells

    @classmethod
    def of_nobody(cls) -> ProcessCounters:
        """For a forked copy of a test's process: the phases that it enters are not the test's."""
        return cls(memoryview(bytearray(_BYTES)).cast("Q"))

    def begin(self) -> None:
        """For a new process."""
        for index in range(_CELLS):
            self._cells[index] = 0

    def clear(self) -> None:
        """For the next test of the same process, whose alarm may still be set."""
        alarm = self._cells[_ALARM]
        self.begin()
        self._cells[_ALARM] = alarm

    def beat(self) -> None:
        self._cells[_BEATS] += 1

    def lap(self, number: int) -> None:
        self._cells[_LAP] = number
        self._cells[_BEATS] += 1

    def pause_beats(self) -> None:
        self._cells[_BEATS_AT_PAUSE] = self._cells[_BEATS]

    def enter(self, phase: str) -> None:
        self.pause_beats()  # beats in one phase promise none in the next
        self._cells[_PHASE] = PHASES.index(phase)
        self._cells[_PHASE_ENTERED] = _clock[0]()

    def set_alarm(self, seconds: float, *, again: bool) -> None:
        """The test has set an alarm that goes off in *seconds*, and *again* after that. 0: it has cancelled it."""
        until = _clock[0]() + int(seconds * 1e9) if seconds else 1
        self._cells[_ALARM] = _FOREVER if seconds and again else min(until, _FOREVER)

    def expects_alarm(self, otherwise: bool) -> bool:
        """Whether the test's own alarm, or the start of its handler, is still to come; *otherwise* if it set none."""
        until = self._cells[_ALARM]
        return until + _ANSWER > _clock[0]() if until else otherwise

    def begin_sleep(self, seconds: float, *, main: bool) -> None:
        """The main thread, or another, sleeps for so long."""
        self._cells[_SLEEP if main else _OTHER_SLEEP] = min(_clock[0]() + int(seconds * 1e9), _FOREVER)

    def sleeps_until(self, *, main: bool) -> float:
        """When the last sleep of the main thread, or of another, ends or has ended, by ``time.monotonic``."""
        return self._cells[_SLEEP if main else _OTHER_SLEEP] / 1e9

    @property
    def beats(self) -> int:
        return self._cells[_BEATS]

    @property
    def beating(self) -> bool:
        """Whether beats are to be expected: there was one, and the test did not say that it was the last."""
        return self._cells[_BEATS] > self._cells[_BEATS_AT_PAUSE]

    @property
    def laps(self) -> int:
        return self._cells[_LAP]

    @property
    def phase(self) -> str:
        """The phase that the test is in; the first if the test has written over this memory."""
        number = self._cells[_PHASE]
        return PHASES[number] if number < len(PHASES) else PHASES[0]

    @property
    def phase_entered(self) -> int:
        """The moment at which the current phase began, as a number that is different for every phase; 0 before."""
        return self._cells[_PHASE_ENTERED]

    @property
    def phase_seconds(self) -> float:
        """How long the current phase has lasted."""
        return (_clock[0]() - self._cells[_PHASE_ENTERED]) / 1e9


def _allocate(descriptor: int, size: int) -> None:
    """Make a file so long, with room for all of it: a full disk is an error here and not a SIGBUS in a test."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.write(descriptor, bytes(size))


class ProgressCounters:
    """The counters of all processes of a run, in one small file that each of them maps."""

    def __init__(self, directory: Path) -> None:
        path = directory / "counters"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < PROCESSES * _BYTES:
                _allocate(descriptor, PROCESSES * _BYTES)
            self._map = mmap.mmap(descriptor, PROCESSES * _BYTES)
        finally:
            os.close(descriptor)
        self._cells = memoryview(self._map).cast("Q")
        self._processes: dict[int, memoryview] = {}

    def of_process(self, serial: int) -> ProcessCounters:
        start = serial % PROCESSES * _CELLS
        cells = self._processes.setdefault(start, self._cells[start : start + _CELLS])
        return ProcessCounters(cells)

    def close(self) -> None:
        """Let go of the file, so that every system allows it to be deleted."""
        for cells in (*self._processes.values(), self._cells):
            cells.release()
        self._map.close()

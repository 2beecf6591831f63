"""What a test's process says too often for a message: counters in memory it shares with the supervisor."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

SLOTS = 64
_CELLS = 8
_SLOT_BYTES = _CELLS * 8
_BEATS, _LAP, _PHASE, _PHASE_START, _BEATS_AT_REST, _ALARM = range(6)
_FOR_EVER = (1 << 64) - 1
_ANSWER = 500_000_000
"""Nanoseconds that an alarm's handler has to begin."""

PHASES = ("start", "setup", "call", "teardown", "exit")


class Slot:
    """One process's cells. Writing one costs about a tenth of a microsecond and survives any death.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     slot = Board(Path(directory)).slot(3)
    ...     slot.begin(); slot.beat(); slot.lap(7); slot.enter("call")
    ...     slot.beats, slot.laps, slot.phase
    (2, 7, 'call')
    """

    __slots__ = ("_cells",)

    def __init__(self, cells: memoryview) -> None:
        self._cells = cells

    @classmethod
    def of_nobody(cls) -> Slot:
        """For a forked copy of a test's process: whatever phases it enters, they are not the test's."""
        return cls(memoryview(bytearray(_SLOT_BYTES)).cast("Q"))

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

    def rest(self) -> None:
        self._cells[_BEATS_AT_REST] = self._cells[_BEATS]

    def enter(self, phase: str) -> None:
        self.rest()  # beats of one phase promise none in the next
        self._cells[_PHASE] = PHASES.index(phase)
        self._cells[_PHASE_START] = time.time_ns()

    def set_alarm(self, seconds: float, *, again: bool) -> None:
        """The test has set an alarm itself: it goes off in so many *seconds*, and *again* after that. 0: it has not."""
        until = time.monotonic_ns() + int(seconds * 1e9) if seconds else 1
        self._cells[_ALARM] = _FOR_EVER if seconds and again else min(until, _FOR_EVER)

    def expects_alarm(self, otherwise: bool) -> bool:
        """Whether an alarm of the test's own is still to come, or to be answered; *otherwise* if it never set one."""
        until = self._cells[_ALARM]
        return until + _ANSWER > time.monotonic_ns() if until else otherwise

    @property
    def beats(self) -> int:
        return self._cells[_BEATS]

    @property
    def beating(self) -> bool:
        """Whether beats are to be expected: there was one, and the test did not say that it was the last."""
        return self._cells[_BEATS] > self._cells[_BEATS_AT_REST]

    @property
    def laps(self) -> int:
        return self._cells[_LAP]

    @property
    def phase(self) -> str:
        return PHASES[self._cells[_PHASE]]

    @property
    def phase_start(self) -> float:
        """When the current phase began, in seconds since the epoch; 0 before the first."""
        return self._cells[_PHASE_START] / 1e9


class Board:
    """The slots of a run, in one small file that parent and children map."""

    def __init__(self, directory: Path) -> None:
        path = directory / "board"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < SLOTS * _SLOT_BYTES:
                os.truncate(path, SLOTS * _SLOT_BYTES)
            self._map = mmap.mmap(descriptor, SLOTS * _SLOT_BYTES)
        finally:
            os.close(descriptor)
        self._cells = memoryview(self._map).cast("Q")

    def slot(self, serial: int) -> Slot:
        start = serial % SLOTS * _CELLS
        return Slot(self._cells[start : start + _CELLS])

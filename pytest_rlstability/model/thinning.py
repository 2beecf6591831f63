"""Which samples are written to the event log: many at the beginning of a test, later one per minute.

A line has some 700 bytes, so one per minute for a week is 7 MB. All workers of a run share this rate, so that several
soaks at the same time do not write more.
"""

from __future__ import annotations

from collections import Counter

from pytest_rlstability.model.events import Sample

SHARE = 50
"""A sample is kept when this part of the time so far, a fiftieth, has passed since the last."""
SHORTEST = 0.02
LONGEST = 60.0
ROOM = 40_000_000
"""How many bytes of samples the event log of a run may have."""


class Thinning:
    """Decides for each sample of one test whether it is kept: ever more rarely, but at least one in *longest* seconds
    times the number of *workers*."""

    def __init__(self, workers: int = 1, *, longest: float = LONGEST) -> None:
        self._longest = longest * max(workers, 1)
        self._kept_at: float | None = None

    def keeps(self, seconds: float) -> bool:
        """Whether to keep the sample taken *seconds* after the start."""
        wait = min(max(SHORTEST, seconds / SHARE), self._longest)
        if self._kept_at is not None and seconds - self._kept_at < wait:
            return False
        self._kept_at = seconds
        return True


class SampleBudget:
    """Keeps the samples of all tests in one log below *room* bytes. Until half of it is used all are written, until
    three quarters are used every second sample of each test, then every fourth, and so on. The last sample of a test,
    which has the judgements, is always written."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._taken = 0
        self._seen: Counter[str] = Counter()

    def admits(self, sample: Sample) -> bool:
        self._seen[sample.test] += 1
        return sample.judged is not None or self._seen[sample.test] % self._stride() == 0

    def spend(self, size: int) -> None:
        self._taken += size

    def _stride(self) -> int:
        stride, left = 1, 1 - self._taken / self._room
        while left < 1 / (2 * stride) and stride < 1 << 20:
            stride *= 2
        return stride

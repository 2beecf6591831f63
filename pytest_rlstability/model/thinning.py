"""Samples thinned for the event log: many while things begin, then one a minute, whatever is running.

A line has some 700 bytes. A week of one a minute is 7 MB, and because the minute is shared by all the workers of a
run, it stays that for any number of soaks side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

SHARE = 50
"""A sample is kept when a fiftieth of the time so far has passed since the last."""
SHORTEST = 0.02
LONGEST = 60.0
ROOM = 40_000_000
"""Bytes of samples in the event log of a run."""


class Thinning:
    """Which of a soak's samples to keep.

    >>> thinning = Thinning(workers=2)
    >>> [second for second in range(100_000) if thinning.keeps(second)][-2:]
    [99850, 99970]
    """

    def __init__(self, workers: int = 1) -> None:
        self._longest = LONGEST * max(workers, 1)
        self._kept_at: float | None = None

    def keeps(self, seconds: float) -> bool:
        """Whether the sample taken *seconds* after the start is worth a line."""
        wait = min(max(SHORTEST, seconds / SHARE), self._longest)
        if self._kept_at is not None and seconds - self._kept_at < wait:
            return False
        self._kept_at = seconds
        return True


class SampleBudget:
    """Which samples the log still takes, so that no number of tests makes it unreadable: all of them until half of
    the *room* (in bytes) is taken, of each test every second until three quarters are, then every fourth, and so on.

    A test's last sample, which says what the samples came to, is always taken.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._taken = 0
        self._seen: Counter[str] = Counter()

    def admits(self, sample: Mapping[str, Any]) -> bool:
        self._seen[sample["test"]] += 1
        return "judged" in sample or self._seen[sample["test"]] % self._stride() == 0

    def spend(self, size: int) -> None:
        self._taken += size

    def _stride(self) -> int:
        stride, left = 1, 1 - self._taken / self._room
        while left < 1 / (2 * stride) and stride < 1 << 20:
            stride *= 2
        return stride

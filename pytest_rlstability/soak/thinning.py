"""Samples thinned for the event log: many while things begin, then one a minute, whatever is running.

A line has some 700 bytes. A week of one a minute is 7 MB, and because the minute is shared by all the workers of a
run, it stays that for any number of soaks side by side.
"""

from __future__ import annotations

SHARE = 50
"""A sample is kept when a fiftieth of the time so far has passed since the last."""
SHORTEST = 0.02
LONGEST = 60.0


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

"""How long threads waited: a histogram whose size does not depend on the number of waits."""

from __future__ import annotations

import math

_STEPS = 8
"""Buckets per doubling: a percentile is exact to about nine per cent."""
_SHORTEST = 1e-7


class Waits:
    """Waiting times in seconds, kept as counts in logarithmic buckets; the longest is exact.

    >>> waits = Waits()
    >>> for milliseconds in range(1, 101):
    ...     waits.add(milliseconds / 1000)
    >>> waits.count, waits.longest, round(waits.percentile(50), 2), round(waits.percentile(99), 2)
    (100, 0.1, 0.05, 0.1)
    """

    __slots__ = ("_buckets", "count", "longest")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        bucket = max(0, round(math.log2(max(seconds, _SHORTEST) / _SHORTEST) * _STEPS))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1
        self.longest = max(self.longest, seconds)

    def percentile(self, per_cent: float) -> float:
        """The time that *per_cent* of the waits did not exceed; 0 when there were none."""
        needed = self.count * per_cent / 100
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= needed:
                return min(_SHORTEST * 2 ** (bucket / _STEPS), self.longest)
        return self.longest

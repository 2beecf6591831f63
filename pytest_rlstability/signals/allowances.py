"""Memory that a library is known to lose by itself: counted by whoever knows of it, taken off what is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_counting: list[Callable[[], int]] = []
_settled: list[int] = [0]


@contextmanager
def allow(lost_bytes: Callable[[], int]) -> Iterator[None]:
    """Take the growing number of bytes that *lost_bytes* gives off the heap, from now on and for good.

    ``with allow(lambda: 304 * polygons_made): ...``; what was lost by the end of the block stays lost.
    """
    _counting.append(lost_bytes)
    try:
        yield
    finally:
        _counting.remove(lost_bytes)
        _settled[0] += lost_bytes()


def allowed_bytes() -> int:
    """Bytes of the heap that are nobody's fault."""
    return _settled[0] + sum(count() for count in _counting)

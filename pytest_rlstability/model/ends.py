"""A list that a test may make as long as it likes, of which only both ends are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ends(Generic[T]):
    """The first and the last *kept* items; between them stands what *say* makes of the number of those left out.

    >>> ends = Ends(1, "[... {:,} left out ...]".format)
    >>> for item in "abcde":
    ...     ends.append(item)
    >>> [*ends]
    ['a', '[... 3 left out ...]', 'e']
    """

    def __init__(self, kept: int, say: Callable[[int], T]) -> None:
        self._kept, self._say = kept, say
        self._first: list[T] = []
        self._last: deque[T] = deque(maxlen=kept)
        self._left_out = 0

    def append(self, item: T) -> None:
        if len(self._first) < self._kept:
            self._first.append(item)
            return
        self._left_out += len(self._last) == self._kept
        self._last.append(item)

    def __iter__(self) -> Iterator[T]:
        yield from self._first
        if self._left_out:
            yield self._say(self._left_out)
        yield from self._last

    def __bool__(self) -> bool:
        return bool(self._first)

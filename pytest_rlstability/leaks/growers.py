"""The containers that grow from window to window: lists, dicts, sets, deques and caches."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pytest_rlstability.leaks.paths import LRU_CACHE
from pytest_rlstability.model.user_code import Origin, origin, outwards

_CONTAINERS = (list, dict, set, deque)
_UNTRACKED = (dict, bytearray)
"""Types that the collector does not list (a dict, if its values are plain). They are found through what refers to
them, or as local variables."""
_BASES = (*_CONTAINERS, bytearray)
_CHUNK = 2000

Census = dict[int, int]


def census() -> Census:
    """id -> length of every container."""
    return {id(thing): _length(thing) for thing in _containers()}


def grown_since(before: Census) -> Census:
    """The part of a new census that is longer than it was *before*."""
    endless = 1 << 62
    return {id(thing): _length(thing) for thing in _containers() if _length(thing) > before.get(id(thing), endless)}


def _containers() -> Iterator[object]:
    tracked = gc.get_objects()
    for start in range(0, len(tracked), _CHUNK):
        chunk = tracked[start : start + _CHUNK]
        yield from (thing for thing in chunk if issubclass(type(thing), _CONTAINERS))
        yield from (thing for thing in gc.get_referents(*chunk) if type(thing) in _UNTRACKED)
    yield from (thing for thing in _local_variables() if type(thing) in _UNTRACKED)


def _local_variables() -> Iterator[object]:
    for frame in list(sys._current_frames().values()):
        for current in outwards(frame):
            if origin(current.f_code.co_filename) is not Origin.OURS:
                yield from list(current.f_locals.values())


def _length(thing: object) -> int:
    kind: Any = type(thing)
    if kind not in _BASES:  # a subclass's own len() may do anything
        kind = next(base for base in _BASES if issubclass(kind, base))
    return int(kind.__len__(thing))


@dataclass(frozen=True, eq=False)
class Grower:
    """A container and how much longer it got in two windows of laps."""

    container: object
    length: int
    grown: int
    laps: int

    @property
    def per_lap(self) -> float:
        return self.grown / self.laps

    @property
    def kind(self) -> str:
        return type(self.container).__name__

    def room(self) -> int | None:
        """How many items it takes until it drops old ones; None if it has no limit."""
        if isinstance(self.container, deque) and self.container.maxlen is not None:
            return self.container.maxlen - self.length
        cache = self.lru_cache()
        largest: int | None = cache.cache_parameters()["maxsize"] if cache is not None else None
        return None if largest is None else largest - self.length

    def lru_cache(self) -> Any:
        """The ``functools.lru_cache`` that keeps its items in this dict, if one does."""
        if type(self.container) is not dict:
            return None
        holders = gc.get_referrers(self.container)
        return next((holder for holder in holders if type(holder) is LRU_CACHE), None)


def growers(before: Census, between: Census, after: Census, laps: int) -> list[Grower]:
    """The containers that grew in both windows, which had *laps* laps together; the fastest first."""
    grown = {
        identity: length - before[identity]
        for identity, length in after.items()
        if before[identity] < between.get(identity, 0) < length
    }
    found = {id(thing): thing for thing in _containers() if id(thing) in grown}
    result = [Grower(thing, after[identity], grown[identity], laps) for identity, thing in found.items()]
    return sorted(result, key=lambda grower: -grower.grown)

"""Which containers grow from window to window: the list, dict, set, deque or cache that keeps what leaks."""

from __future__ import annotations

import gc
import os
import sys
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_CONTAINERS = (list, dict, set, deque)
_UNTRACKED = (dict, bytearray)
"""The collector does not list a dict of plain values, nor a bytearray; whoever refers to them is listed, if it is not
a function that runs."""
_BASES = (*_CONTAINERS, bytearray)
_CHUNK = 2000
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

Census = dict[int, int]


def census() -> Census:
    """id -> length of every container that can be reached from what the garbage collector tracks."""
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
        current: types.FrameType | None = frame
        while current is not None:
            if not current.f_code.co_filename.startswith(_OWN):
                yield from list(current.f_locals.values())
            current = current.f_back


def _length(thing: object) -> int:
    kind: Any = type(thing)
    if kind not in _BASES:  # not its own len(): a subclass's may do anything
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
        """How much longer it can get before it starts to drop things, or None when nothing stops it."""
        if isinstance(self.container, deque) and self.container.maxlen is not None:
            return self.container.maxlen - self.length
        cache = self.lru_cache()
        largest: int | None = cache.cache_parameters()["maxsize"] if cache is not None else None
        return None if largest is None else largest - self.length

    def lru_cache(self) -> Any:
        """The ``functools.lru_cache`` that this dict is the inside of, if it is."""
        if type(self.container) is not dict:
            return None
        holders = gc.get_referrers(self.container)
        return next((holder for holder in holders if type(holder).__name__ == "_lru_cache_wrapper"), None)


def growers(before: Census, between: Census, after: Census, laps: int) -> list[Grower]:
    """The containers that grew in both windows, *laps* together, the fastest first."""
    grown = {
        identity: length - before[identity]
        for identity, length in after.items()
        if before[identity] < between.get(identity, 0) < length
    }
    found = {id(thing): thing for thing in _containers() if id(thing) in grown}
    result = [Grower(thing, after[identity], grown[identity], laps) for identity, thing in found.items()]
    return sorted(result, key=lambda grower: -grower.grown)

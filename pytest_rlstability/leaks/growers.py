"""The containers that grow from window to window, and what those with a limit explain: their items, by line."""

from __future__ import annotations

import gc
import sys
from array import array
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from types import ModuleType
from typing import Any

from pytest_rlstability.compat.cpython import traceback_of
from pytest_rlstability.leaks.lines import Line, users_line
from pytest_rlstability.leaks.paths import LRU_CACHE, own_dict
from pytest_rlstability.model.user_code import Origin, origin, outwards

_CONTAINERS = (list, dict, set, deque)
_UNTRACKED = (dict, bytearray, array)
"""Types that the collector does not list (a dict, if its values are plain). They are found through what refers to
them, or as local variables."""
_BASES = (*_CONTAINERS, bytearray, array)
_CHUNK = 2000
SAMPLED = 64
DEEPEST = 256
"""How many objects are looked at for one item."""
SHARE = 0.02
"""The share of a line's memory that must be found in the items. Much of an object cannot be seen from outside."""
LOUD = (16.0, 0.3)
"""A line counts from so many bytes or blocks per lap."""
DEQUE_BLOCK, DEQUE_BYTES = 512, 9.0
"""A deque takes a block larger than the first for 64 items at a time, which is the second for each item."""
FEWEST_GROWN, SLOWEST = 8, 0.02
"""A container counts from so many items, and so many per lap."""
Kept = tuple[Line, int, int]
"""A line, and how many bytes and blocks that it allocated have stayed."""
LIMITS = frozenset(("maxsize", "maxlen", "maxentries", "maxitems", "capacity", "buffersize", "limit", "sizelimit"))
"""Names, without underscores, of the attribute in which an object that owns a container keeps its limit."""
_QUEUES = ("queue", "asyncio.queues")
"""Modules whose classes keep to their limit. What others do with theirs is unknown."""
Census = dict[int, int]


def census() -> Census:
    """id -> length of every container."""
    return {id(thing): length_of(thing) for thing in _containers()}


def grown_since(before: Census) -> list[tuple[object, int]]:
    """The containers that are longer than *before*, and how long they are. Some of them are new, at the address of one
    that is gone. They are kept alive here, so that a second look knows them apart."""
    endless = 1 << 62
    return [(thing, length) for thing in _containers() if (length := length_of(thing)) > before.get(id(thing), endless)]


def all_objects() -> list[object]:
    """Every object that the collector tracks, frozen or not. All are frozen afterwards if some were."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    objects = gc.get_objects()
    if frozen:
        gc.freeze()
    return objects


def _containers() -> Iterator[object]:
    tracked = all_objects()
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


def length_of(thing: object) -> int:
    kind: Any = type(thing)
    if kind not in _BASES:  # a subclass's own len() may do anything
        kind = next(base for base in _BASES if issubclass(kind, base))
    return int(kind.__len__(thing))


@dataclass(frozen=True, eq=False)
class Grower:
    """A container that grew, and how much longer it got in the last *laps* laps."""

    container: object
    length: int
    grown: int
    laps: int

    @property
    def per_lap(self) -> float:
        return self.grown / self.laps

    @property
    def own_bytes_per_lap(self) -> float:
        """What its table takes for the items of a lap. It grows in steps, so this is the mean."""
        return self.per_lap * sys.getsizeof(self.container, 0) / max(self.length, 1)

    @property
    def kind(self) -> str:
        return type(self.container).__name__

    def room(self) -> int | None:
        """How many items it takes until it drops old ones; None if it has no limit."""
        if isinstance(self.container, deque) and self.container.maxlen is not None:
            return self.container.maxlen - self.length
        cache = self.lru_cache()
        if cache is None:
            limit, owner = self.owners_limit()
            return limit - self.length if type(owner).__module__ in _QUEUES else None
        largest: int | None = cache.cache_parameters()["maxsize"]
        return None if largest is None else largest - self.length

    def owners_limit(self) -> tuple[int, object]:
        """The capacity that the object which owns this container has as an attribute, if it is not exceeded, and the
        object; 0 and None if there is none."""
        holders = gc.get_referrers(self.container)
        holders += gc.get_referrers(*(holder for holder in holders if type(holder) is dict))
        for owner in (holder for holder in holders if not issubclass(type(holder), ModuleType)):
            for name, value in list((own_dict(owner) or {}).items()):
                # Python writes __name of a class as _Class__name
                plain = str(name).rpartition("__")[2].replace("_", "").lower()
                if plain in LIMITS and type(value) is int and value >= self.length:
                    return value, owner
        return 0, None

    def lru_cache(self) -> Any:
        """The ``functools.lru_cache`` that keeps its items in this dict, if one does."""
        if type(self.container) is not dict:
            return None
        holders = gc.get_referrers(self.container)
        return next((holder for holder in holders if type(holder) is LRU_CACHE), None)


def growers(grown: list[tuple[object, int]], laps: int) -> list[Grower]:
    """Those of *grown* that another *laps* laps made longer still; the fastest first."""
    found = {id(thing): Grower(thing, length_of(thing), length_of(thing) - before, laps) for thing, before in grown}
    return sorted((one for one in found.values() if one.grown > 0), key=lambda grower: -grower.grown)


@dataclass
class Bounded:
    """The containers that have a limit, and what their items consist of: bytes and blocks per lap, by line."""

    containers: list[Grower] = field(default_factory=list)
    sizes: defaultdict[Line, float] = field(default_factory=lambda: defaultdict(float))
    counts: defaultdict[Line, float] = field(default_factory=lambda: defaultdict(float))
    reached: set[int] = field(default_factory=set)

    @property
    def own_bytes(self) -> float:
        """What the containers take per lap, besides their items, if they are deques."""
        return DEQUE_BYTES * sum(grower.per_lap for grower in self.containers)

    def explains(self, kept: Kept, laps: int) -> bool:
        """Whether the items explain the memory of this line."""
        line, size, count = kept
        if size / laps <= self.own_bytes and size / count > DEQUE_BLOCK:
            return True
        found = self.sizes.get(line, 0.0) / size, self.counts.get(line, 0.0) / count
        return max(found) * laps >= SHARE

    def growers_beside(self, growers: Sequence[Grower]) -> list[Grower]:
        """Those of *growers* that have no limit and are not part of an item."""
        others = [grower for grower in growers if grower.grown >= FEWEST_GROWN and grower.per_lap >= SLOWEST]
        return [one for one in others if one not in self.containers and id(one.container) not in self.reached]


def is_loud(kept: Kept, laps: int) -> bool:
    _, size, count = kept
    return size >= LOUD[0] * laps or count >= LOUD[1] * laps


def bounded_by(growers: Sequence[Grower], *, traced: bool) -> Bounded:
    """Those of *growers* that have a limit, also one they have just reached. If tracemalloc has *traced* their items,
    also what these consist of."""
    found = Bounded([grower for grower in growers if grower.room() is not None])
    for grower in found.containers if traced else ():
        for line, (size, count) in made_of(grower, found.reached).items():
            found.sizes[line] += size
            found.counts[line] += count
    return found


def made_of(grower: Grower, reached: set[int]) -> dict[Line, tuple[float, float]]:
    """The bytes and objects, by line, that a lap adds to *grower*: what a sample of its items consists of."""
    made = [parts for item in _some_items(grower) if (parts := _parts_of(item, reached))]
    found: dict[Line, tuple[float, float]] = {}
    for line, size in (part for parts in made for part in parts):
        sizes, counts = found.get(line, (0.0, 0.0))
        found[line] = (sizes + size * grower.per_lap / len(made), counts + grower.per_lap / len(made))
    return found


def _some_items(grower: Grower) -> list[object]:
    container: Any = grower.container
    if isinstance(container, (list, deque)):
        return [*islice(reversed(container), SAMPLED), *islice(container, min(SAMPLED, len(container) // 2))]
    if isinstance(container, (set, bytearray, array)):
        return list(islice(container, SAMPLED))
    if grower.lru_cache() is None:
        newest = list(islice(reversed(container.items()), SAMPLED))
        return [part for item in newest for part in item]
    # a cache refers to each key and its result, the newest last, and then to its own parts
    return [*gc.get_referents(grower.lru_cache())[-3 * SAMPLED :], *islice(reversed(container.values()), SAMPLED)]


def count_parts(item: object, new: Set[int] = frozenset()) -> int:
    """How many objects *item* consists of, up to ``DEEPEST``; without classes, but for those whose id is in *new*."""
    seen: set[int] = set()
    waiting = [item]
    while waiting and len(seen) < DEEPEST:
        thing = waiting.pop()
        if id(thing) not in seen and (id(thing) in new or not issubclass(type(thing), (type, ModuleType))):
            seen.add(id(thing))
            waiting += gc.get_referents(thing)
    return len(seen)


def _parts_of(item: object, reached: set[int]) -> list[tuple[Line, int]]:
    """(line, bytes) of every traced object that *item* consists of and that was not *reached* before."""
    made: list[tuple[Line, int]] = []
    waiting = [item]
    for _ in range(DEEPEST):
        if not waiting:
            break
        thing = waiting.pop()
        traceback = traceback_of(thing)
        if id(thing) in reached or traceback is None:
            continue
        reached.add(id(thing))
        if line := users_line(traceback):
            made.append((line, sys.getsizeof(thing, 0)))
        waiting += gc.get_referents(thing)
        base = getattr(thing, "base", None) if type(thing).__name__ == "ndarray" else None
        if base is not None:
            waiting.append(base)
    return made

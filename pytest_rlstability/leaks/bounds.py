"""Which growth a container with a limit explains: its newest items and everything they consist of, by line."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pytest_rlstability.compat.cpython import traceback_of
from pytest_rlstability.leaks.growers import Grower
from pytest_rlstability.leaks.lines import Line, users_line

SAMPLED = 64
DEEPEST = 256
"""How many objects are looked at for one item."""
SHARE = 0.02
"""The share of a line's memory that must be found in the items. Much of an object cannot be seen from outside."""
LOUD = (16.0, 0.3)
"""A line counts from so many bytes or blocks per lap."""
DEQUE_BLOCK, DEQUE_BYTES = 512, 9.0
"""A deque takes a block larger than the first for 64 items at a time, which is the second for each item."""
FEWEST_GROWN = 8
Kept = tuple[Line, int, int]
"""A line, and how many bytes and blocks that it allocated have stayed."""
SLOWEST = 0.02


@dataclass
class Bounded:
    """The containers that have a limit, and what their items consist of: bytes and blocks per lap, by line."""

    containers: list[Grower] = field(default_factory=list)
    sizes: dict[Line, float] = field(default_factory=dict)
    counts: dict[Line, float] = field(default_factory=dict)
    reached: set[int] = field(default_factory=set)

    def lines_beside(self, lines: Sequence[Kept], laps: int) -> list[Kept]:
        """Those of *lines* whose memory the items do not explain."""
        return [kept for kept in lines if not self._explains(kept, laps)]

    def _explains(self, kept: Kept, laps: int) -> bool:
        line, size, count = kept
        own = DEQUE_BYTES * sum(grower.per_lap for grower in self.containers)
        if size / laps <= own and size / count > DEQUE_BLOCK:
            return True
        found = self.sizes.get(line, 0.0) / size, self.counts.get(line, 0.0) / count
        return max(found) * laps >= SHARE

    def growers_beside(self, growers: Sequence[Grower]) -> list[Grower]:
        """Those of *growers* that have no limit and are not part of an item."""
        return [
            grower
            for grower in growers
            if grower not in self.containers
            and id(grower.container) not in self.reached
            and grower.grown >= FEWEST_GROWN
            and grower.per_lap >= SLOWEST
        ]


def is_loud(kept: Kept, laps: int) -> bool:
    _, size, count = kept
    return size >= LOUD[0] * laps or count >= LOUD[1] * laps


def limited(growers: Sequence[Grower]) -> Bounded:
    """Those of *growers* that have a limit, also one they have just reached. Their items are not looked at."""
    return Bounded([grower for grower in growers if grower.room() is not None])


def bounded_by(growers: Sequence[Grower]) -> Bounded:
    """Those of *growers* that have a limit, and what their items consist of. tracemalloc must be running."""
    found = limited(growers)
    for grower in found.containers:
        _account(found, grower)
    return found


def _account(found: Bounded, grower: Grower) -> None:
    made = [parts for item in _some_items(grower) if (parts := _parts_of(item, found.reached))]
    sampled = min(len(made), SAMPLED)
    for line, size in (part for parts in made for part in parts):
        found.sizes[line] = found.sizes.get(line, 0.0) + size * grower.per_lap / sampled
        found.counts[line] = found.counts.get(line, 0.0) + grower.per_lap / sampled


def _some_items(grower: Grower) -> list[object]:
    container: Any = grower.container
    if isinstance(container, deque):
        return [*islice(reversed(container), SAMPLED), *islice(container, min(SAMPLED, len(container) // 2))]
    # a cache refers to each key and its result, the newest last, and then to its own parts
    return [*gc.get_referents(grower.lru_cache())[-3 * SAMPLED :], *islice(reversed(container.values()), SAMPLED)]


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
        line = users_line(traceback)
        if line is not None:
            made.append((line, sys.getsizeof(thing, 0)))
        waiting += gc.get_referents(thing)
        base = getattr(thing, "base", None) if type(thing).__name__ == "ndarray" else None
        if base is not None:
            waiting.append(base)
    return made

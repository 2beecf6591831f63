"""What a few more laps leave behind: allocations by line, objects, and the containers that grow."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any

from pytest_rlstability.compat.cpython import traceback_of
from pytest_rlstability.leaks.check import LeakCheck
from pytest_rlstability.leaks.growers import Bounded, Grower, Kept, bounded_by, census, growers, grown_since
from pytest_rlstability.leaks.known_leaks import CHUNK_OVERHEAD, LARGEST_BLOCK
from pytest_rlstability.leaks.lines import Line, users_line
from pytest_rlstability.leaks.paths import is_referred_to, path_to

FRAMES = 16
FEWEST_TRACED = 3
_KEPT_OBJECTS = 200
_OWN_MODULES = (__name__.partition(".")[0] + ".", "_pytest.", "pluggy.")


def laps_for(check: LeakCheck, wanted: float, slowdown: float) -> int:
    """As many of the *wanted* laps as a quarter of the remaining time allows, at least four."""
    return int(max(4, min(wanted, check.seconds_left / 4 / (check.seconds_per_lap * slowdown))))


@dataclass
class Window:
    """What was seen in two windows of laps for the containers, and in two for the allocations."""

    laps: int
    lines: list[Kept]
    """What each line kept in both windows."""
    types: Counter[str]
    """How many new objects of each type stayed."""
    survivors: list[object]
    """The newest of these objects."""
    grown: list[Grower]
    holding: list[Grower]
    """Those of *grown* that keep what the first line allocates."""
    traced: bool = True
    bounded: Bounded = field(default_factory=Bounded)
    heap_bytes: float = 0.0
    """The part that Python took from malloc, per lap."""

    @property
    def bytes_per_lap(self) -> float:
        return sum(size for _, size, _ in self.lines) / self.laps

    def explains(self, per_lap: float) -> bool:
        return bool(self.lines) and self.bytes_per_lap >= 0.5 * per_lap

    def best_holder(self) -> str:
        """The container that most likely keeps what stayed, as text; empty if no path to one was found."""
        return self.holder_among([*self.holding, *(grower for grower in self.grown if grower not in self.holding)])

    def holder_among(self, growers: Sequence[Grower]) -> str:
        """The first of *growers* to which there is a path, as text."""
        for grower in growers[:4]:
            if path := self.path_of(grower):
                return f"held by {path} ({grower.kind}, {grower.per_lap:+.2g} items per lap)"
        return ""

    def path_of(self, grower: Grower) -> str:
        return path_to(grower.container, hidden=[self.grown, self.bounded.containers, grower, vars(grower)])

    def path_to_survivor(self) -> str:
        alike = self._most_common()
        return path_to(alike[-1], hidden=[self.survivors, alike]) if alike else ""

    def survivor_is_referred_to(self) -> bool:
        alike = self._most_common()
        return bool(alike) and is_referred_to(alike[-1], hidden=[self.survivors, alike])

    def _most_common(self) -> list[object]:
        """The survivors of the type that most of them have."""
        common = self.types.most_common(1)[0][0] if self.types else ""
        return [thing for thing in self.survivors if _type_name(thing) == common]


def new_objects() -> tuple[Counter[str], list[object]]:
    """The objects made since the collector was frozen: how many of each type, and the newest. Ends the freeze."""
    survivors = [thing for thing in gc.get_objects() if not is_own(thing)]
    gc.unfreeze()
    return Counter(map(_type_name, survivors)), survivors[-_KEPT_OBJECTS:]


def _type_name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def watch_window(check: LeakCheck, laps: int) -> Generator[int, None, Window]:
    """Asks for laps, as ``check.windows()`` does, and returns what they left behind."""
    grown = yield from _watch_containers(laps_for(check, laps, slowdown=3))
    grown = [grower for grower in grown if not any(known.keeps(grower.container) for known in check.known_leaks)]
    gc.collect()
    gc.freeze()
    already_tracing = tracemalloc.is_tracing()
    if not already_tracing:
        tracemalloc.start(FRAMES)
    try:
        began = time.perf_counter()
        yield 1
        traced_lap = max(time.perf_counter() - began, 1e-7)
        if 2 * FEWEST_TRACED * traced_lap > max(check.seconds_left, 2.0):
            gc.unfreeze()
            # there is no time to trace, so only the containers are known
            return Window(1, [], Counter(), [], grown, [], traced=False, bounded=bounded_by(grown[:16], traced=False))
        laps = int(max(FEWEST_TRACED, min(laps, check.seconds_left / 4 / traced_lap)))
        tracemalloc.clear_traces()
        yield laps
        gc.collect()
        first, first_heap = kept_by_line()
        yield laps
        gc.collect()
        both, both_heap = kept_by_line()
        lines = kept_in_both(first, both)
        types, survivors = new_objects()
        holding = [grower for grower in grown[:8] if lines and _holds(grower, lines[0][0])]
        bounded = bounded_by(grown[:16], traced=True)
    finally:
        if not already_tracing:
            tracemalloc.stop()
    heap_bytes = max(0, min(first_heap, both_heap - first_heap)) / laps
    return Window(laps, lines, types, survivors, grown, holding, bounded=bounded, heap_bytes=heap_bytes)


def _watch_containers(laps: int) -> Generator[int, None, list[Grower]]:
    """The containers that grow. This comes before tracing: under tracemalloc a census takes a minute."""
    gc.unfreeze()
    gc.collect()
    before = census()
    yield laps
    gc.collect()
    between = grown_since(before)
    yield laps
    gc.collect()
    grown = growers(before, between, grown_since(before), 2 * laps)
    return [grower for grower in grown if grower.grown >= 2]


def kept_in_both(first: dict[Line, tuple[int, int]], both: dict[Line, tuple[int, int]]) -> list[Kept]:
    """What each line left behind in the first window and again in the second, most bytes first."""
    lines = []
    for line, (size, count) in first.items():
        size_after, count_after = both.get(line, (0, 0))
        if size_after > size and count_after > count:
            lines.append((line, min(size, size_after - size), min(count, count_after - count)))
    return sorted(lines, key=lambda entry: -entry[1])


def kept_by_line() -> tuple[dict[Line, tuple[int, int]], int]:
    """Live (bytes, allocations) by the innermost line of the user that led to them; and the bytes from malloc."""
    kept: dict[Line, tuple[int, int]] = {}
    snapshot = tracemalloc.take_snapshot()
    for statistic in snapshot.statistics("traceback"):
        if line := users_line(statistic.traceback):
            size, count = kept.get(line, (0, 0))
            kept[line] = (size + statistic.size, count + statistic.count)
    heap = sum(trace.size + CHUNK_OVERHEAD for trace in snapshot.traces if trace.size > LARGEST_BLOCK)
    return kept, heap


def is_own(thing: object) -> bool:
    """Whether *thing* is ours or pytest's, or belongs to the exception that ended the laps."""
    if issubclass(type(thing), (FrameType, TracebackType)):  # not isinstance: see paths
        return True
    return str(type(thing).__module__).startswith(_OWN_MODULES)


def _holds(grower: Grower, line: Line) -> bool:
    """Whether its newest item, or something near it, was made by *line*."""
    newest = _newest(grower.container)
    if newest is None:
        return False
    cache = grower.lru_cache()
    if cache is not None:  # its links cannot be followed, but its function made what it keeps
        code: CodeType | None = getattr(cache.__wrapped__, "__code__", None)
        return code is not None and line in ((code.co_filename, number) for _, _, number in code.co_lines())
    nearby = [newest, *gc.get_referents(newest)]
    nearby += gc.get_referents(*nearby[1:9])
    return any(users_line(traceback_of(thing)) == line for thing in nearby[:64])


def _newest(container: Any) -> object:
    try:
        if isinstance(container, dict):
            return container[next(reversed(container))]
        return next(iter(container), None) if isinstance(container, set) else container[-1]
    except Exception:  # a subclass may raise anything
        return None

"""What a few more laps leave behind: allocations by line, objects, and the containers that grow."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any
from weakref import ref

from pytest_rlstability.compat.cpython import exit_callbacks, traceback_of
from pytest_rlstability.leaks.check import LeakCheck
from pytest_rlstability.leaks.growers import (
    DEEPEST,
    FEWEST_GROWN,
    Bounded,
    Grower,
    Kept,
    all_objects,
    bounded_by,
    census,
    count_parts,
    growers,
    grown_since,
    made_of,
)
from pytest_rlstability.leaks.known_leaks import CHUNK_OVERHEAD, LARGEST_BLOCK
from pytest_rlstability.leaks.lines import Line, users_line
from pytest_rlstability.leaks.paths import is_referred_to, path_from_a_name, path_to

FRAMES = 16
FEWEST_TRACED = 3
REPLACING = 1.3
"""A line with more blocks than this many times what is missing has replaced some of them."""
OWNING = 0.5
"""Items per lap from which a container may hold native memory that grows in every lap."""
ENOUGH, ENOUGH_OF_A_TYPE, MOST = 0.3, 0.1, 1.5
"""The share of what is missing that a holder's new items, or one type, must make up, and may make up."""
_KEPT_OBJECTS = 2000
_OWN_MODULES = (__name__.partition(".")[0] + ".", "_pytest.", "pluggy.")


def laps_for(check: LeakCheck, wanted: float, slowdown: float) -> int:
    """As many of the *wanted* laps as a quarter of the remaining time allows, at least four."""
    return int(max(4, min(wanted, check.seconds_left / 4 / (check.seconds_per_lap * slowdown))))


@dataclass
class Window:
    """What was seen in two windows of laps for the containers, and in two for the allocations."""

    laps: int
    lines: list[Kept]
    """What each line kept in both windows. Lines that only replace what was there come last."""
    missing: float
    """By how many blocks the check saw memory grow per lap: what came minus what went; 0 if it counted none."""
    types: Counter[str]
    """How many more objects of each type there are."""
    survivors: list[object]
    """The newest objects."""
    grown: list[Grower]
    traced: bool = True
    bounded: Bounded = field(default_factory=Bounded)
    heap_bytes: float = 0.0
    """The part that Python took from malloc, per lap."""
    keeper: Grower | None = None
    holder: str = ""
    """The container that keeps what stayed, also as text; none if none was seen to grow by so much."""
    _likely: list[Grower] = field(default_factory=list)
    _shares: list[list[Kept]] = field(default_factory=list)
    """For the first of the likely, what each line has in its new items."""
    _made_by: defaultdict[str, Counter[Line]] = field(default_factory=lambda: defaultdict(Counter))
    """How many of the newest objects of each type each line has made."""

    @property
    def gained(self) -> list[Kept]:
        """The lines whose share can be what is missing: one that gained more than that has given up the rest. If a
        container was seen to grow by what is missing, it is the lines that make its items."""
        return self.keepers_share or [kept for kept in self.lines if not self._replaces(kept)]

    @property
    def keepers_share(self) -> list[Kept]:
        """What each line has in the new items of the container that keeps what stayed; none if that is not known."""
        shares = zip(self._likely, self._shares, strict=False)
        return next((share for grower, share in shares if grower is self.keeper), [])

    def _replaces(self, kept: Kept) -> bool:
        return 0 < REPLACING * self.missing < (kept[2] - 1) / self.laps

    @property
    def bytes_per_lap(self) -> float:
        gained = sum(size for _, size, _ in self.gained) / self.laps
        if gained and self.keeper is not None:
            gained += self.keeper.own_bytes_per_lap
        replaced = [kept for kept in self.lines if self._replaces(kept)]
        if gained or not replaced:
            return gained
        _, size, count = replaced[0]
        return self.missing * size / count

    def explains(self, per_lap: float) -> bool:
        return bool(self.lines) and self.bytes_per_lap >= 0.5 * per_lap

    def rank(self) -> None:
        """Put first what most likely keeps what stayed, while tracemalloc still knows who made what."""
        self.lines.sort(key=self._replaces)
        lines = [line for line, _, _ in self.gained[:1]]
        self._likely = [grower for grower in self.grown[:16] if self._grew_enough(grower)]
        self._likely.sort(key=lambda grower: (_is_weak(grower), not any(_holds(grower, line) for line in lines)))
        for thing in self.survivors:
            if line := users_line(traceback_of(thing)):
                self._made_by[_type_name(type(thing))][line] += 1
        self._shares = [self._share_of(grower) for grower in self._likely[:4]] if self.traced else []

    def _share_of(self, grower: Grower) -> list[Kept]:
        """What each line has in the new items of *grower*, if they are what is missing; most bytes first. A line's
        blocks are as large as those of its that stayed, because much of an object cannot be seen from outside."""
        made = made_of(grower, set())
        objects = sum(count for _, count in made.values())
        if not ENOUGH * self.missing <= objects <= MOST * self.missing or not objects:
            return []
        stayed = {line: size / count for line, size, count in self.lines}
        shares: list[Kept] = []
        for line, (size, count) in made.items():
            blocks = self.laps * self.missing * count / objects
            shares.append((line, round(blocks * stayed.get(line, size / count)), round(blocks) or 1))
        return sorted(shares, key=lambda kept: -kept[1])

    def find_holder(self, types_before: Counter[type], callbacks_per_lap: float) -> None:
        """Find who keeps what stayed. Under tracemalloc that would take ten times as long."""
        gc.unfreeze()
        types = Counter(map(type, gc.get_objects()))
        types.subtract(types_before)
        more = {kind: count for kind, count in types.items() if count > 0 and not _is_own_type(kind)}
        self.types = Counter({_type_name(kind): count for kind, count in more.items()})
        self.keeper, self.holder = self.holder_among(self._likely)
        if not self.holder and callbacks_per_lap * DEEPEST >= max(self.missing, 1.0):
            self.holder = f"held by atexit ({callbacks_per_lap:+.2g} callbacks per lap)"

    def _grew_enough(self, grower: Grower) -> bool:
        item = newest_item(grower.container)
        if issubclass(type(item), type) or (not gc.is_tracked(item) and type(item).__module__ != "builtins"):
            return grower.per_lap >= OWNING  # a class, or an object of native code that does not show its parts
        parts = count_parts(item, {id(thing) for thing in self.survivors})
        return parts >= DEEPEST or grower.per_lap * parts >= ENOUGH * self.missing

    def holder_among(self, growers: Sequence[Grower]) -> tuple[Grower | None, str]:
        """The first of *growers* to which there is a path, also as text; without what pytest or this package keeps."""
        for grower in growers[:4]:
            path = self.path_of(grower)
            if path and not path.startswith(_OWN_MODULES):
                return grower, f"held by {path} ({grower.kind}, {grower.per_lap:+.2g} items per lap)"
        return None, ""

    def path_of(self, grower: Grower) -> str:
        return path_to(grower.container, hidden=[self.grown, self.bounded.containers, grower, vars(grower)])

    def path_to_survivor(self) -> str:
        alike = self._most_common()
        path = path_to(alike[-1], hidden=[self.survivors, alike]) if alike else ""
        path = path or (path_from_a_name(alike, hidden=[self.survivors]) if alike else "")
        return "" if path.startswith(_OWN_MODULES) else path

    def line_of_survivors(self) -> Line | None:
        """The line that made most objects of the type of which there are more."""
        made = self._made_by[_type_name(type(alike[0]))] if (alike := self._most_common()) else Counter[Line]()
        return made.most_common(1)[0][0] if made else None

    def survivor_is_lost(self) -> bool:
        """Whether there is more of something that nothing refers to."""
        alike = self._most_common()
        return bool(alike) and not is_referred_to(alike[-1], hidden=[self.survivors, alike])

    def _most_common(self) -> list[object]:
        """The survivors of the type that most of them have. The last one is not held by another of them: in a chain,
        that is the link which a name leads to."""
        common, count = self.types.most_common(1)[0] if self.types else ("", 0)
        if count < max(FEWEST_GROWN, ENOUGH_OF_A_TYPE * 2 * self.laps * self.missing):
            return []
        alike = [thing for thing in self.survivors if _type_name(type(thing)) == common]
        held = {id(part) for thing in alike for part in _near(thing)}
        return sorted(alike, key=lambda thing: id(thing) not in held)


def _near(thing: object) -> list[object]:
    """What *thing* refers to, itself or through one object between."""
    referents = gc.get_referents(thing)
    return [*referents, *gc.get_referents(*referents)]


def new_objects() -> tuple[Counter[str], list[object]]:
    """The objects made since the collector was frozen: how many of each type, and the newest. Ends the freeze."""
    survivors = [thing for thing in gc.get_objects() if not is_own(thing)]
    gc.unfreeze()
    return Counter(_type_name(type(thing)) for thing in survivors), survivors[-_KEPT_OBJECTS:]


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def watch_window(check: LeakCheck, laps: int, missing: float) -> Generator[int, None, Window]:
    """Asks for laps, as ``check.windows()`` does, and returns what they left behind: *missing* blocks per lap, as far
    as they were counted. Ends the freeze."""
    callbacks, watched_laps = exit_callbacks(), laps_for(check, laps, slowdown=3)
    grown = yield from _watch_containers(check, watched_laps)
    callbacks_per_lap = (exit_callbacks() - callbacks) / (2 * watched_laps)
    grown = [grower for grower in grown if not check.allows(grower.container)]
    types_before = Counter(map(type, all_objects()))
    already_tracing = tracemalloc.is_tracing()
    if not already_tracing:
        tracemalloc.start(FRAMES)
    try:
        began = time.perf_counter()
        yield 1
        traced_lap = max(time.perf_counter() - began, 1e-7)
        if 2 * FEWEST_TRACED * traced_lap > max(check.seconds_left, 2.0):
            # there is no time to trace, so only the containers are known
            window = Window(1, [], missing, Counter(), [], grown, traced=False)
        else:
            laps = int(max(FEWEST_TRACED, min(laps, check.seconds_left / 4 / traced_lap)))
            window = yield from _trace(check, laps, missing, grown)
        gc.unfreeze()  # what is frozen is not found as the owner of a container
        window.bounded = bounded_by(grown[:16], traced=window.traced)
        window.rank()
    finally:
        if not already_tracing:
            tracemalloc.stop()
    window.find_holder(types_before, callbacks_per_lap)
    return window


def _trace(check: LeakCheck, laps: int, missing: float, grown: list[Grower]) -> Generator[int, None, Window]:
    """What the lines keep in two windows of *laps* traced laps, and the newest objects after them."""
    check.settle(whole=True)
    tracemalloc.clear_traces()
    yield laps
    check.settle()
    first, first_heap = kept_by_line()
    yield laps
    check.settle()
    newest = [thing for thing in gc.get_objects()[-_KEPT_OBJECTS:] if not is_own(thing)]
    check.settle(whole=True)
    both, both_heap = kept_by_line()
    return Window(
        laps,
        kept_in_both(first, both),
        missing,
        Counter(),
        newest,
        grown,
        heap_bytes=max(0, min(first_heap, both_heap - first_heap)) / laps,
    )


def _watch_containers(check: LeakCheck, laps: int) -> Generator[int, None, list[Grower]]:
    """The containers that grow. This comes before tracing: under tracemalloc a census takes a minute."""
    check.settle(whole=True)
    before = census()
    yield laps
    check.settle()
    grown = grown_since(before)
    del before
    yield laps
    check.settle()
    found = growers(grown, laps)
    return [grower for grower in found if grower.grown >= 2 or laps < 2 * FEWEST_TRACED]


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
    return _is_own_type(type(thing))  # not isinstance: see paths


def _is_own_type(kind: type) -> bool:
    return issubclass(kind, (FrameType, TracebackType)) or str(kind.__module__).startswith(_OWN_MODULES)


def _is_weak(grower: Grower) -> bool:
    """Whether it only refers to its items weakly, as ``asyncio.all_tasks()`` does: something else keeps them."""
    return issubclass(type(newest_item(grower.container)), ref)


def _holds(grower: Grower, line: Line) -> bool:
    """Whether its newest item, or something near it, was made by *line*."""
    newest = newest_item(grower.container)
    if newest is None:
        return False
    cache = grower.lru_cache()
    if cache is not None:  # its links cannot be followed, but its function made what it keeps
        code: CodeType | None = getattr(cache.__wrapped__, "__code__", None)
        return code is not None and line in ((code.co_filename, number) for _, _, number in code.co_lines())
    nearby = [newest, *gc.get_referents(newest)]
    nearby += gc.get_referents(*nearby[1:9])
    return any(users_line(traceback_of(thing)) == line for thing in nearby[:64])


def newest_item(container: Any) -> object:
    try:
        if isinstance(container, dict):
            return container[next(reversed(container))]
        return next(iter(container), None) if isinstance(container, set) else container[-1]
    except Exception:  # a subclass may raise anything
        return None

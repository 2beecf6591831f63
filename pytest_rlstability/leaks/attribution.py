"""Who holds what leaked: a few more laps, watched closely. Runs only for what was convicted or is undecided."""

from __future__ import annotations

import gc
import time
import tracemalloc
import types
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from pytest_rlstability.leaks import growers as containers
from pytest_rlstability.leaks.bounds import Bounded, Kept, bounded_by, is_loud, limited
from pytest_rlstability.leaks.check import LeakCheck, Watched
from pytest_rlstability.leaks.growers import Grower
from pytest_rlstability.leaks.harness import CHUNK_OVERHEAD, LARGEST_BLOCK
from pytest_rlstability.leaks.lines import Line, LineMeter, show_line, traceback_of, users_line
from pytest_rlstability.leaks.native import native_tracer
from pytest_rlstability.leaks.paths import Path, is_referred_to, path_to
from pytest_rlstability.signals.registry import GROUPS
from pytest_rlstability.units import format_size

FRAMES = 16
BLOCKS_OF_AN_ITEM = 32
"""What an item of a container may consist of, where there was no time to trace what it does."""
FEWEST_TRACED = 3
NATIVE_RESOLUTION = 24.0
_OWN_MODULES = ((__package__ or "").partition(".")[0], "_pytest.", "pluggy.")
ARENA_SHARE = 0.5


@dataclass
class Finding:
    """What was found out. *answer* is the one line a reader needs, the rest backs it up."""

    answer: str = ""
    culprit: bool = False
    """Whether the answer names a holder, or the line of native memory: growth that was seen to go on."""
    bounded: str = ""
    beside: tuple[str, ...] = ()
    """Signals that grow beside what is *bounded*, and not because of it."""
    python_bytes_per_lap: float | None = None
    sections: list[tuple[str, str]] = field(default_factory=list)

    def add(self, title: str, lines: Sequence[str]) -> None:
        if lines:
            self.sections.append((title, "\n".join(lines)))


def investigate(check: LeakCheck, suspects: Sequence[Watched]) -> Generator[int, None, Finding]:
    """Yields numbers of laps to run, as ``check.windows()`` does, and returns what they showed."""
    finding = Finding()
    memory = [suspect for suspect in suspects if suspect.signal.name in GROUPS["memory"]]
    named = [suspect for suspect in suspects if suspect not in memory]
    if named:
        yield from _investigate_resource(check, named[0], finding)
    elif memory[0].signal.name == "workers":
        finding.answer = "; ".join(list(memory[0].signal.inventory().values())[:3])
    else:
        yield from _investigate_memory(check, memory, finding)
    return finding


def inspect_survivors() -> Finding:
    """What can be said without another lap: the objects made since the collector was frozen, and who holds them."""
    gc.collect()
    newborn = [thing for thing in gc.get_objects() if not _is_own(thing)]
    births = Counter(f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in newborn)
    gc.unfreeze()
    window = Window(max(1, len(newborn)), [], births, newborn[-200:], [], [])
    finding = Finding()
    holder = _path_to_newborn(window)
    if births:
        name, count = births.most_common(1)[0]
        finding.answer = f"{count} more of {name}" + (f", held by {holder}" if holder else "")
    finding.add("objects that stayed", [f"{count:8}  {name}" for name, count in births.most_common(5)])
    return finding


def _laps_for(check: LeakCheck, wanted: float, slowdown: float) -> int:
    """As many of the *wanted* laps as a quarter of the remaining time allows, at least four."""
    cost = max(check.lap_seconds / max(check.laps, 1), 1e-7) * slowdown
    return int(max(4, min(wanted, check.seconds_left / 4 / cost)))


# descriptors, threads, processes, shared memory, files, probes


def _investigate_resource(check: LeakCheck, suspect: Watched, finding: Finding) -> Generator[int, None, None]:
    per_lap = max(suspect.judgement.per_lap, 0.01)
    laps = _laps_for(check, min(24 / per_lap, 240), slowdown=20)
    before = suspect.signal.inventory()
    line = yield from _meter(suspect, laps)
    fresh = [text for key, text in suspect.signal.inventory().items() if key not in before]
    where = f"made at {show_line(*line)}" if line else ""
    example = fresh[-1] if fresh else ""
    finding.answer = "; ".join(part for part in (where, example) if part)
    finding.add(f"left behind by {laps} more laps", [*fresh[:5], *([f"... {len(fresh)} in all"] if fresh[5:] else [])])


def _meter(suspect: Watched, laps: int) -> Generator[int, None, Line | None]:
    meter = yield from _metered(suspect, laps)
    return meter.best(suspect.judgement.per_lap, laps)


def _metered(suspect: Watched, laps: int) -> Generator[int, None, LineMeter]:
    yield 1
    meter = LineMeter(suspect.signal.read)
    meter.start()
    try:
        yield laps
    finally:
        meter.stop()
    return meter


# memory


def _investigate_memory(check: LeakCheck, memory: list[Watched], finding: Finding) -> Generator[int, None, None]:
    python = [suspect for suspect in memory if suspect.signal.name in ("python", "objects", "torch")]
    native = [suspect for suspect in memory if suspect.signal.name in ("malloc", "mappings", "cuda", "cuda_driver")]
    rate = python[0].judgement.per_lap if python and python[0].signal.unit == "count" else 1.0
    laps = round(min(max(64 / max(rate, 0.01), 48), 6400))
    window = yield from _watch_window(check, laps)
    finding.python_bytes_per_lap = window.bytes_per_lap
    _explain_python(window, finding, lost=bool(python))
    if window.bounded.containers and (yield from _explain_bounded(check, window, finding)):
        return
    if native and window.traced and not window.explains(native[0].judgement.per_lap) and check.seconds_left > 0:
        yield from _investigate_native(check, native[0], window, finding)


@dataclass
class Window:
    """Twice two equal windows of laps: what each line kept in both, who was born, and which containers grew."""

    laps: int
    lines: list[Kept]
    births: Counter[str]
    newborn: list[object]
    grown: list[Grower]
    holding: list[Grower]
    """Those among them that keep what the first line allocates."""
    traced: bool = True
    bounded: Bounded = field(default_factory=Bounded)
    heap_bytes: float = 0.0
    """What of it Python took from malloc, per lap."""

    @property
    def bytes_per_lap(self) -> float:
        return sum(size for _, size, _ in self.lines) / self.laps

    def explains(self, per_lap: float) -> bool:
        return bool(self.lines) and self.bytes_per_lap >= 0.5 * per_lap


def _watch_window(check: LeakCheck, laps: int) -> Generator[int, None, Window]:
    grown = yield from _watch_containers(_laps_for(check, laps, slowdown=3))
    grown = [grower for grower in grown if not any(known.keeps(grower.container) for known in check.allowances)]
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
            # no time to trace: the containers have to do
            return Window(1, [], Counter(), [], grown, [], traced=False, bounded=limited(grown[:16]))
        laps = int(max(FEWEST_TRACED, min(laps, check.seconds_left / 4 / traced_lap)))
        tracemalloc.clear_traces()
        yield laps
        gc.collect()
        first, first_heap = _kept_by_line()
        yield laps
        gc.collect()
        both, both_heap = _kept_by_line()
        lines = _kept_in_both(first, both)
        newborn = [thing for thing in gc.get_objects() if not _is_own(thing)]
        gc.unfreeze()
        top = lines[0][0] if lines else None
        holding = [grower for grower in grown[:8] if _holds(grower, top)]
        bounded = bounded_by(grown[:16])
    finally:
        if not already_tracing:
            tracemalloc.stop()
    births = Counter(f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in newborn)
    heap_bytes = max(0, min(first_heap, both_heap - first_heap)) / laps
    return Window(laps, lines, births, newborn[-200:], grown, holding, bounded=bounded, heap_bytes=heap_bytes)


def _watch_containers(laps: int) -> Generator[int, None, list[Grower]]:
    """The containers that grow. Before the allocations are traced: under tracemalloc a census takes a minute."""
    gc.unfreeze()
    gc.collect()
    before = containers.census()
    yield laps
    gc.collect()
    between = containers.grown_since(before)
    yield laps
    gc.collect()
    grown = containers.growers(before, between, containers.grown_since(before), 2 * laps)
    return [grower for grower in grown if grower.grown >= 2]


def _kept_in_both(first: dict[Line, tuple[int, int]], both: dict[Line, tuple[int, int]]) -> list[Kept]:
    """What each line left behind in the first window and again in the second, most bytes first."""
    lines = []
    for line, (size, count) in first.items():
        size_after, count_after = both.get(line, (0, 0))
        if size_after > size and count_after > count:
            lines.append((line, min(size, size_after - size), min(count, count_after - count)))
    return sorted(lines, key=lambda entry: -entry[1])


def _kept_by_line() -> tuple[dict[Line, tuple[int, int]], int]:
    """(bytes, allocations) that are alive, by the innermost line of the user's that led to them; and malloc's part."""
    kept: dict[Line, tuple[int, int]] = {}
    snapshot = tracemalloc.take_snapshot()
    for statistic in snapshot.statistics("traceback"):
        line = users_line(statistic.traceback)
        if line is not None:
            size, count = kept.get(line, (0, 0))
            kept[line] = (size + statistic.size, count + statistic.count)
    heap = sum(trace.size + CHUNK_OVERHEAD for trace in snapshot.traces if trace.size > LARGEST_BLOCK)
    return kept, heap


def _is_own(thing: object) -> bool:
    """Whether *thing* is ours or pytest's, or of the exception that ended the laps."""
    if issubclass(type(thing), (types.FrameType, types.TracebackType)):  # not isinstance: see paths
        return True
    return str(type(thing).__module__).startswith(_OWN_MODULES)


def _newest(container: object) -> object:
    try:
        if isinstance(container, dict):
            return container[next(reversed(container))]
        return next(iter(container), None) if isinstance(container, set) else container[-1]  # type: ignore[index]
    except Exception:  # a subclass's may raise what it likes
        return None


def _holds(grower: Grower, line: Line | None) -> bool:
    """Whether its newest item, or something that one refers to, was made by *line*."""
    newest = _newest(grower.container)
    if newest is None or line is None:
        return False
    cache = grower.lru_cache()
    if cache is not None:  # its links are opaque, but what it keeps is what its function made
        return line in _lines_of(cache.__wrapped__)
    nearby = [newest, *gc.get_referents(newest)]
    nearby += gc.get_referents(*nearby[1:9])
    return any(users_line(traceback_of(thing)) == line for thing in nearby[:64])


def _lines_of(function: object) -> set[Line]:
    code: types.CodeType | None = getattr(function, "__code__", None)
    if code is None:
        return set()
    return {(code.co_filename, number) for _, _, number in code.co_lines() if number is not None}


def _explain_python(window: Window, finding: Finding, lost: bool) -> None:
    """Name the line and the holder. What nobody holds is *lost* if there are objects that stayed."""
    grower, path = _best_holder(window)
    parts = []
    if window.lines:
        parts.append(f"allocated at {show_line(*window.lines[0][0])}")
    if grower is not None and path is not None:
        finding.culprit = True
        parts.append(f"held by {path} ({grower.kind}, {grower.per_lap:+.2g} items per lap)")
    elif window.newborn and window.lines:
        holder = _path_to_newborn(window)
        finding.culprit = holder is not None
        if holder:
            parts.append(f"held by {holder}")
        elif lost and not _newborn_is_referred_to(window):
            parts.append("no Python object refers to it: a reference native code lost")
    finding.answer = ", ".join(parts)
    finding.add(
        f"lines whose memory stayed (per lap, over twice {window.laps} laps)",
        [
            f"{format_size(size / window.laps):>10}  {count / window.laps:8.2f} blocks  {show_line(*line)}"
            for line, size, count in window.lines[:5]
        ],
    )
    born = [(name, count / (2 * window.laps)) for name, count in window.births.most_common(5)]
    often = [(name, rate) for name, rate in born if rate >= 1 / 20]
    finding.add("objects that stayed", [f"{count:8.2f} per lap  {name}" for name, count in often])


def _best_holder(window: Window) -> tuple[Grower | None, Path | None]:
    others = [grower for grower in window.grown if grower not in window.holding]
    for grower in [*window.holding, *others][:4]:
        path = _path_of(grower, window)
        if path is not None:
            return grower, path
    return None, None


def _path_of(grower: Grower, window: Window) -> Path | None:
    hidden = [window.grown, window.bounded.containers, grower, vars(grower)]
    return path_to(grower.container, hidden=hidden)


def _path_to_newborn(window: Window) -> Path | None:
    alike = _common_newborn(window)
    return path_to(alike[-1], hidden=[window.newborn, alike]) if alike else None


def _newborn_is_referred_to(window: Window) -> bool:
    alike = _common_newborn(window)
    return bool(alike) and is_referred_to(alike[-1], hidden=[window.newborn, alike])


def _common_newborn(window: Window) -> list[object]:
    """Those that stayed and are of the type that most of them are."""
    common = window.births.most_common(1)[0][0] if window.births else ""
    return [thing for thing in window.newborn if f"{type(thing).__module__}.{type(thing).__qualname__}" == common]


def _explain_bounded(check: LeakCheck, window: Window, finding: Finding) -> Generator[int, None, bool]:
    """Say what will stop the growth, or what grows beside the containers that have a limit; whether that is all."""
    bounded = window.bounded
    items = sum(grower.per_lap for grower in bounded.containers)
    if not window.lines and items * BLOCKS_OF_AN_ITEM < _blocks_per_lap(check):
        return False
    path = _path_of(bounded.containers[0], window)
    where = str(path) if path is not None else f"a {bounded.containers[0].kind}"
    lines = bounded.lines_beside(window.lines, window.laps)
    growers = bounded.growers_beside(window.grown)
    if not growers and not any(is_loud(kept, window.laps) for kept in lines):
        if sum(size for _, size, _ in lines) > 0.5 * sum(size for _, size, _ in window.lines):
            return False  # it takes next to nothing itself
        lines = []
    if lines or growers:
        return _explain_rest(window, lines, growers, finding, where)
    room = bounded.containers[0].room()
    finding.bounded = f"fills {where}, which " + (f"has room for {room} more" if room else "is full now")
    for suspect in check.watched:
        unexplained = _native_rest(suspect, window)
        if unexplained:
            owned, line = yield from _native_lines(check, suspect, window, unexplained)
            if line is not None:
                finding.culprit = True
                finding.answer = f"native memory, taken at {show_line(*line)}; {where} grows too, and has a limit"
            if line is not None or not owned:
                finding.beside = (*finding.beside, suspect.signal.name)
    return not finding.beside or "native memory" in finding.answer


def _blocks_per_lap(check: LeakCheck) -> float:
    return max((entry.judgement.per_lap for entry in check.watched if entry.signal.name == "python"), default=0.0)


def _explain_rest(window: Window, lines: list[Kept], growers: list[Grower], finding: Finding, where: str) -> bool:
    found = ((grower, _path_of(grower, window)) for grower in growers[:4])
    grower, path = next(((grower, path) for grower, path in found if path is not None), (None, None))
    parts = [f"allocated at {show_line(*lines[0][0])}"] if lines else []
    if grower is not None:
        parts.append(f"held by {path} ({grower.kind}, {grower.per_lap:+.2g} items per lap)")
    if parts:
        finding.culprit = True
        finding.answer = f"{', '.join(parts)}; {where} grows too, and has a limit"
    return bool(parts)


def _native_rest(suspect: Watched, window: Window) -> float:
    """How much of the growth of *suspect*, per lap, no Python object's own memory explains; 0 for next to nothing."""
    judged, name = suspect.judgement, suspect.signal.name
    if not judged.growing or name not in ("malloc", "mappings"):
        return 0.0
    if name == "mappings" and window.bytes_per_lap >= ARENA_SHARE * judged.per_lap:
        return 0.0
    rest = judged.per_lap - (window.heap_bytes if name == "malloc" else 0.0)
    return rest if rest >= max(NATIVE_RESOLUTION, 0.1 * judged.per_lap) else 0.0


def _native_lines(
    check: LeakCheck, suspect: Watched, window: Window, unexplained: float
) -> Generator[int, None, tuple[bool, Line | None]]:
    """Whether lines that make what the containers keep take most of what is *unexplained*; and which other does."""
    laps = _laps_for(check, 48, slowdown=20)
    first = (yield from _metered(suspect, laps)).rises(laps)
    second = (yield from _metered(suspect, laps)).rises(laps)
    rises = {line: min(rise, second.get(line, 0.0)) for line, rise in first.items()}
    owned = sum(rise for line, rise in rises.items() if line in window.bounded.counts) >= 0.5 * unexplained
    others = {line: rise for line, rise in rises.items() if line not in window.bounded.counts}
    line = max(others, key=lambda line: others[line], default=None)
    loud = line is not None and others[line] >= max(NATIVE_RESOLUTION, 0.2 * unexplained)
    return owned, line if loud else None


def _investigate_native(
    check: LeakCheck, suspect: Watched, window: Window, finding: Finding
) -> Generator[int, None, None]:
    laps = _laps_for(check, 64, slowdown=20)
    line = yield from _meter(suspect, laps)
    tracer = native_tracer() if suspect.signal.name in ("malloc", "mappings") and check.seconds_left > 5 else None
    frames: list[str] = []
    if tracer is not None:
        try:
            tracer.start()
            try:
                yield laps
            finally:
                tracer.stop()
            frames = tracer.stack(laps)
            line = line or tracer.line
        finally:
            tracer.close()
    known = suspect.signal.inventory()
    largest = list(known.values())[-3:] if known else []
    if line and window.lines and line == window.lines[0][0]:
        pass  # the Python objects made there own the native memory, and who holds those has been said
    elif line:
        finding.culprit = True
        finding.answer = f"native memory, taken at {show_line(*line)}"
    finding.add("native stack (memray)", frames)
    finding.add("newest mappings", largest)

"""Who holds what leaked: a few more laps with tracing. Runs only for signals that are a leak or undecided."""

from __future__ import annotations

import gc
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from pytest_rlstability.leaks.check import LeakCheck
from pytest_rlstability.leaks.growers import Grower, Kept, is_loud, length_of
from pytest_rlstability.leaks.lines import Line, LineMeter, native_stack, show_line
from pytest_rlstability.leaks.survivors import OWNING, Window, laps_for, new_objects, watch_window
from pytest_rlstability.leaks.watched import Watched
from pytest_rlstability.model.units import format_size

BLOCKS_OF_AN_ITEM = 32
"""How many blocks an item of a container may have, where there was no time to trace it."""
NATIVE_RESOLUTION = 24.0
METERED_LAPS, MOST_METERED = 240, 2.0
"""How many laps are metered at a time, and for how many seconds more are."""


@dataclass
class Finding:
    """What was found out. *answer* says it in one line, *sections* have the details."""

    answer: str = ""
    line: Line | None = None
    """The line of the user's code that makes it grow, if the answer names one."""
    librarys: bool = False
    """Whether the memory belongs to a library: no Python object of the user's owns it."""
    culprit: bool = False
    """Whether the answer names a container that grew, or a line that takes native memory."""
    bounded: str = ""
    capacity: str = ""
    """What the owner of the holder says about a limit, if it has not been reached."""
    beside: tuple[str, ...] = ()
    """Signals whose growth is not explained by what is *bounded*."""
    python_bytes_per_lap: float | None = None
    sections: list[tuple[str, str]] = field(default_factory=list)

    def add(self, title: str, lines: Sequence[str]) -> None:
        if lines:
            self.sections.append((title, "\n".join(lines)))


def investigate(check: LeakCheck, suspects: Sequence[Watched]) -> Generator[int, None, Finding]:
    """Yields numbers of laps to run, as ``check.windows()`` does, and returns what was found."""
    finding = Finding()
    memory = [suspect for suspect in suspects if suspect.signal.group == "memory"]
    named = [suspect for suspect in suspects if suspect not in memory]
    if named:
        yield from _investigate_resource(check, named[0], finding)
    elif memory[0].signal.name == "workers":
        finding.answer = "; ".join(list(memory[0].signal.inventory().values())[:3])
    else:
        yield from _investigate_memory(check, memory, finding)
    return finding


def inspect_survivors() -> Finding:
    """What is known without another lap: the objects made since the collector was frozen, and who holds them."""
    gc.collect()
    types, survivors = new_objects()
    finding = Finding()
    holder = Window(1, [], 0.0, types, survivors, []).path_to_survivor()
    if types:
        name, count = types.most_common(1)[0]
        finding.answer = f"{count} more of {name}" + (f", held by {holder}" if holder else "")
    finding.add("objects that stayed", [f"{count:8}  {name}" for name, count in types.most_common(5)])
    return finding


def _investigate_resource(check: LeakCheck, suspect: Watched, finding: Finding) -> Generator[int, None, None]:
    per_lap = max(suspect.judgement.per_lap, 0.001)
    most = laps_for(check, min(24 / per_lap, max(METERED_LAPS, 6 / per_lap), 10 * METERED_LAPS), slowdown=20)
    before, value, laps = suspect.signal.inventory(), suspect.signal.read(), 0
    stop = time.perf_counter() + MOST_METERED
    yield 1
    with LineMeter(suspect.signal.read) as meter:
        # what grows rarely takes many laps to show
        while laps < most and (not laps or (suspect.signal.read() < value + 3 and time.perf_counter() < stop)):
            yield (count := min(METERED_LAPS, most - laps))
            laps += count
    finding.line = meter.best(per_lap, laps)
    fresh = [text for key, text in suspect.signal.inventory().items() if key not in before]
    where = [f"made at {show_line(*finding.line)}"] if finding.line else []
    finding.answer = "; ".join([*where, *fresh[-1:]])
    finding.add(f"left behind by {laps} more laps", [*fresh[:5], *([f"... {len(fresh)} in all"] if fresh[5:] else [])])


def _metered(suspect: Watched, laps: int) -> Generator[int, None, LineMeter]:
    yield 1
    with LineMeter(suspect.signal.read) as meter:
        yield laps
    return meter


def _investigate_memory(check: LeakCheck, memory: list[Watched], finding: Finding) -> Generator[int, None, None]:
    growing = {entry.signal.name: entry.judgement.per_lap for entry in check.watched if entry.judgement.growing}
    native = [suspect for suspect in memory if suspect.signal.name in ("malloc", "mappings", "cuda", "cuda_driver")]
    missing = growing.get("python", 0.0)
    laps = round(min(max(64 / max(missing or growing.get("objects", 1.0), 0.01), 48), 6400))
    window = yield from watch_window(check, laps, missing)
    finding.python_bytes_per_lap = window.bytes_per_lap
    # what a container gains in every lap may own native memory
    owned = window.keeper is not None and window.keeper.per_lap >= OWNING
    if not native or "python" in growing or owned or window.explains(native[0].judgement.per_lap):
        if window.keeper is not None and window.traced and not window.keepers_share:
            finding.line = yield from _adding_line(check, window.keeper)
        _explain_python(window, finding, lost="python" in growing)
    if window.bounded.containers and (yield from _explain_bounded(check, window, finding)):
        return
    if native and window.traced and not window.explains(native[0].judgement.per_lap) and check.seconds_left > 0:
        yield from _investigate_native(check, native[0], window, finding)


def _adding_line(check: LeakCheck, keeper: Grower) -> Generator[int, None, Line | None]:
    """The line that makes *keeper* longer. Where Python reuses memory, allocations do not tell who made its items."""
    laps = laps_for(check, min(8 / keeper.per_lap, 2400), slowdown=20)
    with LineMeter(lambda: length_of(keeper.container)) as meter:
        yield laps
    return meter.best(keeper.per_lap, laps)


def _explain_python(window: Window, finding: Finding, lost: bool) -> None:
    """Name the line and the holder. With *lost*, objects that nothing refers to were lost by native code."""
    holder = window.holder
    finding.culprit = bool(holder)
    parts = []
    if finding.line is not None:
        parts.append(f"added at {show_line(*finding.line)}")
    elif line := window.gained[0][0] if window.gained else window.line_of_survivors():
        finding.line = line
        parts.append(f"allocated at {show_line(*line)}")
    traced = bool(window.survivors and window.lines)
    if not holder and traced and (path := window.path_to_survivor()):
        holder = f"held by {path}"
    if window.keeper is not None:
        limit, owner = window.keeper.owners_limit()
        finding.capacity = f"{type(owner).__name__} has a limit of {limit}, which was not reached" if limit else ""
    if holder:
        parts.append(holder)
    elif traced and lost and window.survivor_is_lost():
        parts.append("no Python object refers to it: a reference native code lost")
    elif lost:
        parts.append("no owner found")
    finding.answer = ", ".join(parts)
    finding.add(
        f"lines whose memory stayed (per lap, over twice {window.laps} laps)",
        [
            f"{format_size(size / window.laps):>10}  {count / window.laps:8.2f} blocks  {show_line(*line)}"
            for line, size, count in window.gained[:5]
        ],
    )
    rates = [(name, count / (2 * window.laps)) for name, count in window.types.most_common(5)]
    often = [(name, rate) for name, rate in rates if rate >= 1 / 20]
    finding.add("objects that stayed", [f"{count:8.2f} per lap  {name}" for name, count in often])


def _explain_bounded(check: LeakCheck, window: Window, finding: Finding) -> Generator[int, None, bool]:
    """Name what will stop the growth, or what grows beside the containers with a limit. Returns whether that explains
    all of it."""
    bounded = window.bounded
    items = sum(grower.per_lap for grower in bounded.containers)
    blocks = max((entry.judgement.per_lap for entry in check.watched if entry.signal.name == "python"), default=0.0)
    if not window.lines and items * BLOCKS_OF_AN_ITEM < blocks:
        return False
    where = window.path_of(bounded.containers[0]) or f"a {bounded.containers[0].kind}"
    lines = [kept for kept in window.gained if not bounded.explains(kept, window.laps)]
    growers = bounded.growers_beside(window.grown)
    if not growers and not any(is_loud(kept, window.laps) for kept in lines):
        if sum(size for _, size, _ in lines) > 0.5 * sum(size for _, size, _ in window.gained):
            return False  # the containers hold hardly any of it
        lines = []
    if lines or growers:
        return (yield from _explain_rest(check, window, lines, growers, finding, where))
    room = bounded.containers[0].room()
    finding.bounded = f"fills {where}, which " + (f"has room for {room} more" if room else "is full now")
    for suspect in check.watched:
        if unexplained := _native_rest(suspect, window):
            owned, line = yield from _native_lines(check, suspect, window, unexplained)
            if line is not None:
                finding.culprit, finding.line = True, line
                finding.answer = f"native memory, taken at {show_line(*line)}; {where} grows too, and has a limit"
            if line is not None or not owned:
                finding.beside = (*finding.beside, suspect.signal.name)
    return not finding.beside or "native memory" in finding.answer


def _explain_rest(
    check: LeakCheck, window: Window, lines: list[Kept], growers: list[Grower], finding: Finding, where: str
) -> Generator[int, None, bool]:
    grower, holder = window.holder_among(growers)
    finding.line = (yield from _adding_line(check, grower)) if grower is not None else None
    parts = [f"added at {show_line(*finding.line)}"] if finding.line else []
    if lines and not parts:
        finding.line = lines[0][0]
        parts = [f"allocated at {show_line(*finding.line)}"]
    if holder:
        parts.append(holder)
    if parts:
        finding.culprit, finding.answer = True, f"{', '.join(parts)}; {where} grows too, and has a limit"
    return bool(parts)


def _native_rest(suspect: Watched, window: Window) -> float:
    """How much of the growth of *suspect*, per lap, the memory of Python objects does not explain; 0 for little."""
    judged, name = suspect.judgement, suspect.signal.name
    if not judged.growing or name not in ("malloc", "mappings"):
        return 0.0
    if name == "mappings" and window.explains(judged.per_lap):
        return 0.0  # Python's arenas
    known = max(window.heap_bytes, window.bounded.own_bytes) if name == "malloc" else 0.0
    rest = judged.per_lap - known
    return rest if rest >= max(NATIVE_RESOLUTION, 0.1 * judged.per_lap) else 0.0


def _native_lines(
    check: LeakCheck, suspect: Watched, window: Window, unexplained: float
) -> Generator[int, None, tuple[bool, Line | None]]:
    """Whether the lines that make the containers' items take most of what is *unexplained*; and any other line that
    takes much of it."""
    laps = laps_for(check, 48, slowdown=20)
    first = (yield from _metered(suspect, laps)).rises(laps)
    second = (yield from _metered(suspect, laps)).rises(laps)
    rises = {line: min(rise, second.get(line, 0.0)) for line, rise in first.items()}
    owned = sum(rises.pop(line, 0.0) for line in window.bounded.counts) >= 0.5 * unexplained
    loud = {line: rise for line, rise in rises.items() if rise >= max(NATIVE_RESOLUTION, 0.2 * unexplained)}
    return owned, max(loud, key=lambda line: loud[line], default=None)


def _investigate_native(
    check: LeakCheck, suspect: Watched, window: Window, finding: Finding
) -> Generator[int, None, None]:
    laps = laps_for(check, 64, slowdown=20)
    line = (yield from _metered(suspect, laps)).best(suspect.judgement.per_lap, laps)
    if suspect.signal.name in ("malloc", "mappings") and check.seconds_left > 5:
        frames, traced = yield from native_stack(laps)
        finding.add("native stack (memray)", frames)
        line = line or traced
    # Python objects that the same line makes own the native memory, and their holder is known already.
    if line and not (finding.answer and window.lines and line == window.lines[0][0]):
        finding.culprit, finding.line, finding.librarys = True, line, not finding.culprit
        finding.answer = ", ".join([f"native memory, taken at {show_line(*line)}", *filter(None, [window.holder])])
    elif not finding.answer and window.gained:
        finding.line = window.gained[0][0]
        finding.answer = f"native memory, perhaps of what is made at {show_line(*finding.line)}"
    finding.add("newest mappings", list(suspect.signal.inventory().values())[-3:])

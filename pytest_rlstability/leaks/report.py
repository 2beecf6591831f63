"""The LEAK report, and the warning about what is undecided."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from pytest_rlstability.leaks.attribution import Finding
from pytest_rlstability.leaks.check import MEASURING_SHARE, LeakCheck
from pytest_rlstability.leaks.watched import Watched
from pytest_rlstability.model.series import sparkline
from pytest_rlstability.model.units import format_duration, format_size
from pytest_rlstability.model.verdict import Fact, Location, Section, Verdict, Word
from pytest_rlstability.osinfo.memory import memory_room
from pytest_rlstability.verdicts.leak import FEWEST_SAMPLES, LeakState

_COURSE, _COLUMNS = 10, 76
"""Characters of a chart, and of a line of names: so a report fits a terminal of 80 columns."""
RECYCLED_SHARE = 0.5
"""A process is replaced when it has taken this share of the free memory."""


def amount(value: float, unit: str) -> str:
    """*value* as text: bytes as a size, counts as a number."""
    if unit == "bytes":
        return format_size(value)
    return f"{value:.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.3g}"


def whole_table(check: LeakCheck) -> str:
    """The table of a check, and lines for what did not change, was allowed for or could not be measured."""
    still = [entry.signal.name for entry in check.watched if _stood_still(entry)]
    lines = [table([entry for entry in check.watched if not _stood_still(entry)])]
    if still:
        lines.append(fill(f"unchanged: {', '.join(still)}", _COLUMNS, subsequent_indent="  "))
    lines += [f"allowed for: {known.reason}" for known in check.known_leaks if known.blocks() or known.heap_bytes()]
    lines += [f"not measured: {name} ({why})" for name, why in check.missing.items()]
    return "\n".join(lines)


def _stood_still(entry: Watched) -> bool:
    return entry.judgement.state == LeakState.CLEAN and not entry.dismissed and not entry.series.growth


def table(watched: Sequence[Watched]) -> str:
    """One row per signal: first, last, per lap, its course and the verdict."""
    rows = [("signal", "first", "last", "per lap", "course", "verdict")]
    rows += [_row(entry) for entry in sorted(watched, key=lambda entry: entry.judgement.state != LeakState.LEAK)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _row(entry: Watched) -> tuple[str, str, str, str, str, str]:
    judged, unit, series = entry.judgement, entry.signal.unit, entry.series
    first = amount(series.values[0] if len(series) else 0, unit)
    rate = amount(judged.per_lap, unit) + (" a minute" if entry.by_minute else "") if judged.per_lap else "0"
    state = Word.LEAK if judged.state == LeakState.LEAK else judged.state
    verdict = f"{state} ({entry.dismissed})" if entry.dismissed else str(state)
    return entry.signal.title, first, amount(series.last, unit), rate, sparkline(series.values, _COURSE), verdict


def verdict(check: LeakCheck, finding: Finding) -> Verdict:
    """The LEAK verdict on the first leak of *check*, with the holder from *finding*."""
    top = check.leaks()[0]
    remarks = []
    if top.signal.name == "python" and finding.python_bytes_per_lap:
        remarks.append(format_size(finding.python_bytes_per_lap))
    if check.settings.limit is not None and top.signal.group == "memory":
        remarks.append(f"limit {format_size(check.settings.limit)}")
    elif top.rule.limit:
        remarks.append(f"limit {amount(top.rule.limit, top.signal.unit)}")
    headline = f"{top.signal.title} grow by {amount(top.judgement.per_lap, top.signal.unit)} per {top.per}"
    if remarks:
        headline += f" ({', '.join(remarks)})"
    if finding.answer:
        headline += f", {finding.answer}"
    facts: dict[str, Fact] = {
        "signal": top.signal.name,
        "class": top.signal.name,
        "per_lap": round(top.judgement.per_lap, 3),
        "limit": top.rule.limit or check.settings.limit or 0,
        "laps": check.laps,
    }
    sections = [
        (f"signals over {check.measured_laps} laps after {check.measured_from} to warm up", whole_table(check)),
        *check.sections(),
        *([("who holds it", finding.answer)] if finding.answer else []),
        *finding.sections,
        *_recycling(check, finding),
        ("to allow it", suppression(top, finding, check.settings.catalog.group("resources"))),
    ]
    location = None if finding.line is None else Location(*finding.line)
    return Verdict(Word.LEAK, headline, tuple(sections), facts, location)


def _recycling(check: LeakCheck, finding: Finding) -> list[Section]:
    """How to live with memory that a library loses: end the process in time."""
    sizes = [entry.judgement.per_lap for entry in check.leaks() if entry.signal.name in ("malloc", "mappings")]
    if not sizes or not finding.librarys:
        return []
    room, per_lap = memory_room(check.settings.memory_limit), max(sizes)
    laps = int(RECYCLED_SHARE * room / per_lap)
    text = (
        f"A library keeps it. If you cannot change that, start a new process after at most {laps:,} laps: they take "
        f"{format_size(laps * per_lap)} at {format_size(per_lap)} per lap, half of the {format_size(room)} that are "
        "free."
    )
    return [("to live with it", text)]


def suppression(top: Watched, finding: Finding, resources: Sequence[str]) -> str:
    """What to write to allow this growth; *resources* are the names of the signals in that group."""
    if not top.signal.group:
        return f"rl_probe({top.signal.name!r}, ..., per_{top.per}={top.judgement.per_lap * 1.25:.3g})"
    size = top.judgement.per_lap if top.signal.unit == "bytes" else finding.python_bytes_per_lap
    if size and top.signal.group == "memory":
        return f'@pytest.mark.rl_no_leak(limit="{format_size(size * 1.25).replace(" ", "")}")'
    memory = [] if top.signal.group == "memory" else ["memory"]
    others = [name for name in resources if name != top.signal.name]
    return f"@pytest.mark.rl_no_leak(signals={memory + others})"


def undecided_text(check: LeakCheck, finding: Finding) -> str:
    """What could not be decided, and what would decide it."""
    parts = []
    for entry in check.undecided():
        judged = entry.judgement
        per_lap = amount(judged.per_lap, entry.signal.unit)
        parts.append(f"{entry.signal.title} {judged.reason} ({per_lap} per lap over {judged.laps} laps)")
    wanted = max((entry.judgement.laps_wanted for entry in check.undecided()), default=0)
    text = f"{check.settings.marker} undecided: {'; '.join(parts)}"
    if finding.answer:
        text += f"; {finding.answer}"
    given, option = check.settings.budget, "--rl-leak-budget"
    if check.settings.duration is not None:
        given, option = check.settings.duration, "--rl-soak"
    needed = max(wanted * check.seconds_per_lap * 1.5, 2 * given)
    return f"{text}. About {wanted} laps would decide it: {option}={_budget(needed)}"


def too_slow_text(check: LeakCheck) -> str:
    """What a test with too few laps is told before any of them is measured."""
    option = "--rl-leaks" if check.settings.sweep else "--rl-leak-budget"
    needed = 1.25 * FEWEST_SAMPLES * check.quickest_lap / MEASURING_SHARE
    return (
        f"a lap takes {format_duration(check.quickest_lap)}, and fewer than {FEWEST_SAMPLES} laps fit the budget. "
        f"About {4 * FEWEST_SAMPLES} laps would decide it: {option}={_budget(4 * needed)}; "
        f"{option}={_budget(needed)} finds what grows in every lap"
    )


def _budget(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 600 else f"{seconds / 60:.0f}min"

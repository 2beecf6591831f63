"""The LEAK report and the lines about what is bounded or undecided."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_rlstability.events import Fact, Verdict
from pytest_rlstability.leaks.attribution import Finding
from pytest_rlstability.leaks.check import LeakCheck, Watched
from pytest_rlstability.leaks.series import sparkline
from pytest_rlstability.signals.registry import GROUPS
from pytest_rlstability.units import format_size


def amount(value: float, unit: str) -> str:
    """*value* for a person: bytes as a size, counts as a number."""
    if unit == "bytes":
        return format_size(value)
    return f"{value:.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.3g}"


def whole_table(check: LeakCheck) -> str:
    """The table of a check, with what stood still, what was allowed for and what could not be measured."""
    still = [entry.signal.name for entry in check.watched if _stood_still(entry)]
    lines = [table([entry for entry in check.watched if not _stood_still(entry)])]
    if still:
        lines.append(f"unchanged: {', '.join(still)}")
    lines += [f"allowed for: {allowance.reason}" for allowance in check.allowances]
    lines += [f"not measured: {name} ({why})" for name, why in check.missing.items()]
    return "\n".join(lines)


def _stood_still(entry: Watched) -> bool:
    return entry.judgement.state == "clean" and not entry.dismissed and not entry.series.growth


def table(watched: Sequence[Watched]) -> str:
    """One row per signal: first, last, per lap, its course and the verdict."""
    header = ("signal", "first", "last", "per lap", "course", "verdict")
    rows = [header]
    for entry in sorted(watched, key=lambda entry: entry.judgement.state != "leak"):
        judged, unit = entry.judgement, entry.signal.unit
        rows.append(
            (
                entry.signal.title,
                amount(entry.series.values[0] if len(entry.series) else 0, unit),
                amount(entry.series.last, unit),
                _rate(entry) if judged.per_lap else "0",
                sparkline(entry.series.values),
                "LEAK"
                if judged.state == "leak"
                else judged.state + (f" ({entry.dismissed})" if entry.dismissed else ""),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _rate(entry: Watched) -> str:
    """Its growth per lap, for the column of that name, or what it is per minute."""
    rate = amount(entry.judgement.per_lap, entry.signal.unit)
    return f"{rate} a minute" if entry.by_minute else rate


def verdict(check: LeakCheck, finding: Finding) -> Verdict:
    """The LEAK verdict for what *check* convicted and *finding* explains."""
    top = check.leaks()[0]
    remarks = []
    if top.signal.name == "python" and finding.python_bytes_per_lap:
        remarks.append(format_size(finding.python_bytes_per_lap))
    if check.settings.limit is not None and top.signal.name in GROUPS["memory"]:
        remarks.append(f"limit {format_size(check.settings.limit)}")
    elif top.rule.limit:
        remarks.append(f"limit {amount(top.rule.limit, top.signal.unit)}")
    per = "minute" if top.by_minute else "lap"
    headline = f"{top.signal.title} grow by {amount(top.judgement.per_lap, top.signal.unit)} per {per}"
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
        (
            f"signals over {check.measured_laps} laps after {check.measured_from} to warm up",
            whole_table(check),
        ),
        *check.sections(),
        *([("who holds it", finding.answer)] if finding.answer else []),
        *finding.sections,
        ("to allow it", suppression(top, finding)),
    ]
    return Verdict("LEAK", headline, tuple(sections), facts)


def suppression(top: Watched, finding: Finding) -> str:
    """How to say that this growth is known."""
    if top.signal.name not in (*GROUPS["memory"], *GROUPS["resources"]):
        rate, bound = top.judgement.per_lap * 1.25, "per_minute" if top.by_minute else "per_lap"
        return f"rl_probe({top.signal.name!r}, ..., {bound}={rate:.3g})"
    size = top.judgement.per_lap if top.signal.unit == "bytes" else finding.python_bytes_per_lap
    if size and top.signal.name in GROUPS["memory"]:
        return f'@pytest.mark.rl_no_leak(limit="{format_size(size * 1.25).replace(" ", "")}")'
    memory = [] if top.signal.name in GROUPS["memory"] else ["memory"]
    others = [name for name in GROUPS["resources"] if name != top.signal.name]
    return f"@pytest.mark.rl_no_leak(signals={memory + others})"


def undecided_text(check: LeakCheck, finding: Finding | None) -> str:
    """What could not be decided, and what would decide it."""
    parts = []
    for entry in check.undecided():
        judged = entry.judgement
        per_lap = amount(judged.per_lap, entry.signal.unit)
        parts.append(f"{entry.signal.title} {judged.reason} ({per_lap} per lap over {judged.laps} laps)")
    wanted = max((entry.judgement.laps_wanted for entry in check.undecided()), default=0)
    text = f"{check.settings.marker} undecided: {'; '.join(parts)}"
    if finding is not None and finding.answer:
        text += f"; {finding.answer}"
    cost = check.lap_seconds / max(check.laps, 1)
    given, option = check.settings.budget, "--rl-leak-budget"
    if check.settings.duration is not None:
        given, option = check.settings.duration, "--rl-soak"
    needed = max(wanted * cost * 1.5, 2 * given)
    return f"{text}. About {wanted} laps would decide it: {option}={_flag(needed)}"


def _flag(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 600 else f"{seconds / 60:.0f}min"

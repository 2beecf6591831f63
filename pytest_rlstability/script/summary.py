"""What ``rlstability run`` prints when the command has ended."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_rlstability.leaks.soak_check import growth_per_second
from pytest_rlstability.model.run import Run
from pytest_rlstability.model.series import SampleTable
from pytest_rlstability.model.units import format_duration, format_size
from pytest_rlstability.osinfo.machine import platform_line, versions_line
from pytest_rlstability.osinfo.memory import memory_room
from pytest_rlstability.script.watch import Watched

_FEWEST_SECONDS = 20.0
"""In less time the growth of a start is all that is seen."""
_PREFIX = "rlstability run:"


def summary(watched: Watched) -> str:
    """The report on a command, headline first; one line for a command that ended well."""
    run, verdict = watched.run, watched.verdict
    blocks = [] if verdict is None else [verdict.text()]
    if verdict is not None:
        facts = [f"Platform: {platform_line()}", f"          {versions_line()}"]
        facts += [f"Signature: {verdict.facts['signature']}", f"Reproduce: {watched.reproduce}"]
        blocks.append("\n".join(facts) + "\n")
    blocks.append("".join(f"{_PREFIX} {line}\n" for line in _closing_lines(watched, run)))
    return "\n" + "\n".join(blocks)


def _closing_lines(watched: Watched, run: Run) -> Iterator[str]:
    how = "ended by rlstability" if watched.ended_by_us else f"exit status {watched.status}"
    peak = f", peak memory {format_size(run.peak_memory)}" if run.peak_memory else ""
    yield f"{how} after {format_duration(run.seconds)}{peak}"
    if growth := memory_growth(watched.samples, run.spec.memory_limit):
        yield growth
    if run.ending.exit is not None and run.ending.exit.strays and not watched.ended_by_us:
        yield f"still running, and not watched any more: {', '.join(run.ending.exit.strays)}"


def memory_growth(samples: SampleTable, limit: int | None) -> str:
    """By how much memory grew, steadily, until the end; empty if it did not."""
    seconds = samples.seconds
    if not seconds or seconds[-1] - seconds[0] < _FEWEST_SECONDS:
        return ""
    per_second = growth_per_second(seconds, samples.column("rss"))
    if per_second <= 0:
        return ""
    beats = samples.laps[-1] - samples.laps[0]
    per_beat = per_second * (seconds[-1] - seconds[0]) / beats if beats else 0.0
    each = f", {format_size(per_beat)} per heartbeat" if per_beat else ""
    left = format_duration(memory_room(limit) / per_second)
    return f"memory grew by {format_size(per_second * 60)} per minute{each}; at this rate the rest lasts {left}"

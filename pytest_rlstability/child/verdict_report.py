"""A verdict as the pytest report people and tools read: terminal, short summary, JUnit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from sys import intern, modules
from traceback import walk_tb  # bound here: a test may replace it
from typing import Any

import pytest

from pytest_rlstability.compat.pytest import text_repr
from pytest_rlstability.config.options import settings_of
from pytest_rlstability.config.reproduce import reproduce_command
from pytest_rlstability.model.channel import is_test_process
from pytest_rlstability.model.statements import statement_at
from pytest_rlstability.model.user_code import Origin, origin
from pytest_rlstability.model.verdict import Location, Verdict, VerdictFailure
from pytest_rlstability.osinfo.machine import platform_line, versions_line

PREFIX = "rl_stability."
_PACKAGE = __name__.partition(".")[0]
_SOAK_FACTS = ("seconds", "memory", "memory_per_hour", "hours_to_limit", "lap_seconds_first", "lap_seconds_last")


def hide_own_frames() -> None:
    """Have pytest leave the frames of this package out of tracebacks, unless ``--full-trace`` asks for them."""
    for name, module in [*modules.items()]:
        if name.partition(".")[0] == _PACKAGE and module is not None:
            module.__dict__["__tracebackhide__"] = True


def show_raised(report: pytest.TestReport, item: pytest.Item, raised: BaseException) -> None:
    """Show the verdict that was raised as an exception, if it was one; of any other, keep the name."""
    if isinstance(raised, VerdictFailure):
        show_verdict(report, item, _completed(raised, item, str(report.when)))
    elif is_test_process(item.config):
        # What pytest keeps of it depends on --tb, and failures are grouped by it.
        stability_of(report)["raised"] = type(raised).__name__
        if location := _users_location(raised):
            stability_of(report)["line"] = [location.file, location.line, location.function]


def _completed(raised: VerdictFailure, item: pytest.Item, phase: str) -> Verdict:
    """The verdict with what its maker need not know: phase, signature, and the user's line that raised it."""
    from pytest_rlstability.model.stack_dump import Frame
    from pytest_rlstability.verdicts.signatures import signature

    verdict = raised.verdict
    kind = verdict.facts.get("signal") or verdict.facts.get("class") or ""
    function = getattr(item, "originalname", None) or item.name
    # Not the number of the line: a line added above it would make it another leak.
    line = "" if verdict.location is None else statement_at(verdict.location.file, verdict.location.line)
    frame = Frame(item.path.name, 0, function)
    name = signature(f"{verdict.word.lower()} {kind}".strip(), phase, [frame], detail=line)
    location = verdict.location or _users_location(raised)
    return replace(verdict, facts={"phase": phase, "signature": name, **verdict.facts}, location=location)


def _users_location(raised: BaseException) -> Location | None:
    """The innermost line of the user's code that *raised* passed through."""
    calls = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walk_tb(raised.__traceback__)]
    own = next((call for call in reversed(calls) if origin(call[0]) is Origin.USER), None)
    return None if own is None else Location(*own)


def show_verdict(report: pytest.TestReport, item: pytest.Item, verdict: Verdict, command: str = "") -> None:
    """Make *report* show *verdict*: its title wherever pytest shows one line, all of it where there is room.

    An expected failure stays one: only its text changes. *command* reproduces it; without one, the test alone does.
    """
    command = command or reproduce_command(item, settings_of(item.config))
    path, line, _ = item.location
    report.longrepr = text_repr(verdict_text(verdict, command), path, (line or 0) + 1, verdict.title)
    stability_of(report).update(verdict=verdict.to_dict(), reproduce=command)


def verdict_text(verdict: Verdict, command: str) -> str:
    """All of *verdict*, the machine that it was reached on, and the *command* that reproduces it."""
    text = verdict.text() + f"\nPlatform: {platform_line()}\n          {versions_line()}\n"
    if signature := verdict.facts.get("signature"):
        text += f"Signature: {signature}\n"
    return f"{text}Reproduce: {command}\n"


def stability_of(report: pytest.TestReport | pytest.CollectReport) -> dict[str, Any]:
    """What we know of a test beyond pytest's report: JSON values that travel with it, through xdist too."""
    known: dict[str, Any] | None = getattr(report, "rl_stability", None)
    if known is None:
        known = report.rl_stability = {}  # type: ignore[union-attr]
    return known


def junit_properties(known: Mapping[str, Any]) -> list[tuple[str, object]]:
    """The ``rl_stability.*`` properties of a test."""
    pairs: dict[str, object] = {key: known[key] for key in ("seed", "backend") if key in known}
    pairs.update(known.get("facts", {}))
    if soak := known.get("soak"):
        pairs.update({f"soak_{name}": soak[name] for name in _SOAK_FACTS if soak[name] is not None})
        pairs.update(laps=soak["laps"], per_lap=next(iter(soak["per_lap"].values()), 0))
    if verdict := known.get("verdict"):
        pairs = {"verdict": verdict["word"], **verdict["facts"], **pairs}
    return [(intern(PREFIX + name), value) for name, value in pairs.items()]

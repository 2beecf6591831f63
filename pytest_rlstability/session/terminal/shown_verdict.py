"""A verdict as the terminal shows it: in colour, with short paths, and without what all failures of a run share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from pytest_rlstability.compat.pytest import show_otherwise
from pytest_rlstability.model.paths import without_root
from pytest_rlstability.model.verdict import Verdict

_SHORT = ("", "Stages", "Wait-for cycle", "Python stacks", "who holds it", "Process")
"""The sections that ``--tb=short`` shows; of the stacks, the first."""
_ALARMING = re.compile(r"^died in |\(crashed here\)$|\bLEAK$")


def shorten(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    """Have the terminal show the verdict of *report* in its own way. Files that quote the report get all of it."""
    known = getattr(report, "rl_stability", {})
    if "verdict" in known and report.longrepr is not None:
        verdict = Verdict.from_dict(known["verdict"])
        style = config.getoption("tbstyle")
        lines = _lines(verdict, known["reproduce"], str(config.rootpath), short=style == "short")
        report.longrepr = show_otherwise(report.longrepr, [] if style == "line" else [*lines])


def _lines(verdict: Verdict, command: str, root: str, *, short: bool) -> Iterator[tuple[str, dict[str, bool]]]:
    """Lines with their markup. Paths below *root* are shown without it."""
    yield without_root(verdict.title, root), {"red": True, "bold": True}
    for title, text in verdict.sections:
        if short and title not in _SHORT:
            continue
        if title:
            yield "", {}
            yield f"{title}:", {"bold": True}
        for number, line in enumerate(without_root(text, root).rstrip("\n").split("\n")):
            if short and number and line.startswith("thread "):
                break
            yield f"  {line}".rstrip(), {"red": True} if _ALARMING.search(line) else {}
    yield "", {}
    if signature := verdict.facts.get("signature"):
        yield f"Signature: {signature}", {}
    yield f"Reproduce: {command}", {"bold": True}


def status_with_word(status: tuple[str, str, object], report: pytest.TestReport) -> tuple[str, str, object]:
    """What a report is called while tests run: by the word of its verdict, where pytest says FAILED."""
    known = getattr(report, "rl_stability", {})
    category, letter, _ = status
    if report.failed and "verdict" in known:
        return category, letter, (known["verdict"]["word"], {"red": True})
    if report.when == "call" and report.passed and known.get("undecided"):
        return category, "u", ("UNDECIDED", {"yellow": True})
    return status


def add_location(report: pytest.TestReport, config: pytest.Config) -> None:
    """Put the line to look at into the one line of the short summary, if that does not name it."""
    location = getattr(report, "rl_stability", {}).get("verdict", {}).get("location")
    crash = getattr(report.longrepr, "reprcrash", None)
    if location and crash is not None and f":{location['line']}" not in crash.message:
        crash.message += f" at {location['file'].removeprefix(f'{config.rootpath}{os.sep}')}:{location['line']}"

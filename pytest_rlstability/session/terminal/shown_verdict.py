"""A verdict as the terminal shows it: in colour, with short paths, and without what all failures of a run share."""

from __future__ import annotations

import os
import re
import sys
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
        style = config.getoption("tbstyle", "auto")
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
        return category, "?", ("UNDECIDED", {"yellow": True})
    return status


def add_location(report: pytest.TestReport, config: pytest.Config, word: str) -> None:
    """Put the line to look at into the one line of the short summary, if that does not name it. pytest cuts that line
    at the width of the terminal: the headline gives way, not the place."""
    location = getattr(report, "rl_stability", {}).get("verdict", {}).get("location")
    crash = getattr(report.longrepr, "reprcrash", None)
    if not location or crash is None:
        return
    root = str(config.rootpath)
    place = f"{without_root(location['file'], root)}:{location['line']}"
    headline = without_root(crash.message, root)
    room = config.get_terminal_writer().fullwidth - len(f"{word} {report.nodeid} - ")
    crash.message = with_place(headline, place, sys.maxsize if "CI" in os.environ else room)


def with_place(headline: str, place: str, room: int) -> str:
    """*headline* and *place* in *room* characters, if that is enough for the word and the place.

    >>> with_place("LEAK: threads grow by 1 per lap, made at env.py:4", "env.py:4", 100)
    'LEAK: threads grow by 1 per lap, made at env.py:4'
    >>> with_place("LEAK: threads grow by 1 per lap, made at env.py:4", "env.py:4", 40)
    'LEAK: threads grow by 1... at env.py:4'
    """
    if place in headline[:room]:
        return headline
    whole, end = f"{headline} at {place}", f"... at {place}"
    if place in headline:
        whole = headline
    if len(whole) <= room:
        return whole
    kept = headline[: max(room - len(end), 0)]
    if len(kept) < len("CRASH: "):
        return whole
    return f"{kept.rpartition(' ')[0].rstrip(' ,') or kept}{end}"

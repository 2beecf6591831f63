"""``$GITHUB_STEP_SUMMARY``: the run's failures as a table on the page of the GitHub Actions job."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "GITHUB_STEP_SUMMARY"
MOST_BYTES = 1024 * 1024 - 4096
"""GitHub shows nothing of a summary above 1 MiB; what other tools of the same step have written counts too."""
MOST_ROWS = 1000
_ORDER = ("CRASH", "STALL", "LEAK", "FLAKY", "FAILED")
_LONGEST_CELL = 400
_HEADER = "| | test | what | signature | reproduce |\n| --- | --- | --- | --- | --- |\n"
_MARKED_UP = re.compile(r"[^A-Za-z0-9 .,:/()-]", re.ASCII)


@dataclass(frozen=True)
class Failure:
    """One row."""

    word: str
    test: str
    headline: str
    signature: str
    reproduce: str

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Failure:
        verdict = event.get("verdict") or {}
        headline = verdict.get("headline") or _first_error(event.get("report") or "")
        signature = str(verdict.get("facts", {}).get("signature", ""))
        return cls(verdict.get("word", "FAILED"), event["test"], headline, signature, event.get("reproduce") or "")

    def row(self) -> str:
        cells = (code(self.test), code(self.headline), code(self.signature), code(self.reproduce))
        return f"| **{escape(self.word)}** | {' | '.join(cells)} |\n"


class StepSummary:
    """Remembers the failures of a run and appends their table when it is over."""

    def __init__(self, path: Path) -> None:
        self.trouble = ""
        self._path = path
        self._outcomes: Counter[str] = Counter()
        self._words: Counter[str] = Counter()
        self._failures: list[Failure] = []

    def hear(self, event: Mapping[str, Any]) -> None:
        if event["event"] != "finished":
            return
        self._outcomes[event["outcome"]] += 1
        if event["outcome"] == "failed":
            failure = Failure.of(event)
            self._words[failure.word] += 1
            self._failures.append(failure)

    def close(self) -> None:
        try:
            with open(self._path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(self.text(MOST_BYTES - os.fstat(file.fileno()).st_size))
        except OSError as error:
            self.trouble = f"{VARIABLE}={self._path}: {error.strerror or error}; the step's summary is not written"

    def lines(self) -> Sequence[str]:
        return ()

    def text(self, most_bytes: int = MOST_BYTES) -> str:
        """The tally and the table, worst first, in at most so many bytes."""
        parts = [f"### rl-stability\n\n{self._tally()}\n\n"]
        rows = [failure.row() for failure in sorted(self._failures, key=_rank)]
        if rows:
            parts.append(_HEADER)
        room = most_bytes - sum(len(part.encode("utf-8", "backslashreplace")) for part in parts) - 100
        shown = 0
        for row in rows[:MOST_ROWS]:
            room -= len(row.encode("utf-8", "backslashreplace"))
            if room < 0:
                break
            parts.append(row)
            shown += 1
        if shown < len(rows):
            parts.append(f"\n... and {len(rows) - shown} more failures\n")
        return "".join([*parts, "\n"]) if room >= 0 or shown else ""

    def _tally(self) -> str:
        tests = sum(self._outcomes.values())
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self._outcomes.items()))
        words = ", ".join(f"{self._words[word]} {word}" for word in _ORDER[:-1] if self._words[word])
        counted = f"{tests} test{'' if tests == 1 else 's'}"
        return f"{counted}: {outcomes or 'none ran'}{f' ({words})' if words else ''}"


def code(text: str) -> str:
    """*text* as code in a table's cell, whatever is in it; empty stays empty.

    >>> code("test_env.py::test_step"), code("a|b`")
    ('`test_env.py::test_step`', '<code>a&#124;b&#96;</code>')
    """
    text = " ".join(text.split())
    if len(text) > _LONGEST_CELL:
        text = text[: _LONGEST_CELL - 3] + "..."
    if not text:
        return ""
    if not re.search(r"[|`\\\x00-\x1f\x7f]", text):
        return f"`{text}`"
    # Entities are never read as Markdown, not even by a table that looks for its bars.
    return f"<code>{_MARKED_UP.sub(lambda found: f'&#{ord(found[0])};', text)}</code>"


def _rank(failure: Failure) -> tuple[int, str]:
    place = _ORDER.index(failure.word) if failure.word in _ORDER else len(_ORDER)
    return place, failure.test


def _first_error(report: str) -> str:
    """What pytest marks as the error in an ordinary failure's text, else its last line."""
    lines = [line for line in report.splitlines() if line.strip()]
    marked = next((line[1:].strip() for line in lines if line.startswith("E ")), "")
    return marked or (lines[-1].strip() if lines else "")


def add_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    """No flag: GitHub Actions sets the variable."""


def open_report(config: pytest.Config) -> StepSummary | None:
    path = os.environ.get(VARIABLE)
    return StepSummary(Path(path)) if path else None

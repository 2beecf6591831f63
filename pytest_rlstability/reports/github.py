"""``$GITHUB_STEP_SUMMARY``: the run's failures as a table on the page of the GitHub Actions job."""

from __future__ import annotations

import os
import re
from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest

from pytest_rlstability.model.events import Event, Finished, Session
from pytest_rlstability.model.paths import without_root
from pytest_rlstability.model.verdict import PLAIN_FAILURE, Word
from pytest_rlstability.reports.files import FileReport
from pytest_rlstability.reports.page_text import cause_lines

VARIABLE = "GITHUB_STEP_SUMMARY"
MOST_BYTES = 1024 * 1024 - 4096
"""GitHub shows nothing of a summary above 1 MiB. What other tools of the same step have written counts too."""
MOST_ROWS = 1000
_ROOM_BELOW = 100
_ORDER = (*Word, PLAIN_FAILURE)
_LONGEST_CELL = 400
_HEADER = "| | test | why and where | signature | reproduce |\n| --- | --- | --- | --- | --- |\n"
_MARKED_UP = re.compile(r"[^A-Za-z0-9 .,:/()-]", re.ASCII)


class StepSummary(FileReport):
    """Collects the failures of a run, and appends their table to the summary at the end."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{VARIABLE}={path}", "the step's summary is not written")
        self._path = path
        self._root = ""
        self._outcomes: Counter[str] = Counter()
        self._words: Counter[str] = Counter()
        self._rows: list[tuple[int, str, str]] = []
        """Rank, test and row of each failure."""

    def handle(self, event: Event) -> None:
        if isinstance(event, Session):
            self._root = event.root
        if not isinstance(event, Finished):
            return
        self._outcomes[event.outcome] += 1
        if event.failed:
            word = event.verdict.word if event.verdict else PLAIN_FAILURE
            self._words[word] += 1
            self._rows.append((_ORDER.index(word), event.test, _row(word, event, self._root)))

    def close(self) -> None:
        with self._writing(), open(self._path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(self.text(MOST_BYTES - os.fstat(file.fileno()).st_size))

    def text(self, most_bytes: int = MOST_BYTES) -> str:
        """The tally and the table, worst first, in at most *most_bytes*; nothing if there is no room for them."""
        rows = [row for _, _, row in sorted(self._rows)]
        head = f"### rl-stability\n\n{self._tally()}\n\n{_HEADER if rows else ''}"
        room = most_bytes - _size(head) - _ROOM_BELOW
        shown = sum(size <= room for size in accumulate(map(_size, rows[:MOST_ROWS])))
        more = f"\n... and {len(rows) - shown} more failures\n" if shown < len(rows) else ""
        return "".join([head, *rows[:shown], more, "\n"]) if room >= 0 else ""

    def _tally(self) -> str:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self._outcomes.items()))
        words = ", ".join(f"{self._words[word]} {word}" for word in Word if self._words[word])
        tests = self._outcomes.total()
        return f"{tests} test{'' if tests == 1 else 's'}: {outcomes or 'none ran'}{f' ({words})' if words else ''}"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace"))


def _row(word: str, event: Finished, root: str) -> str:
    verdict = event.verdict
    location = verdict.location if verdict else event.location
    signature = str(verdict.facts.get("signature", "")) if verdict else ""
    what = [without_root(text, root) for text in (*cause_lines(event), str(location or ""))]
    cells = (code(event.test), "<br>".join(map(code, filter(None, what))), code(signature), code(event.reproduce or ""))
    return f"| **{word}** | {' | '.join(cells)} |\n"


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
    # An entity is never read as Markdown, not even as the bar between two cells.
    return f"<code>{_MARKED_UP.sub(lambda found: f'&#{ord(found[0])};', text)}</code>"


def open_report(config: pytest.Config) -> StepSummary | None:
    """The summary, if GitHub Actions has set its variable."""
    path = os.environ.get(VARIABLE)
    return StepSummary(Path(path)) if path else None

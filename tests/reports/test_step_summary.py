"""The table on GitHub's page of a job: worst first, nothing in it taken for Markdown, never too long."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from report_logs import event

from pytest_rlstability.model.events import Event
from pytest_rlstability.reports.github import MOST_BYTES, StepSummary, code


def failed(test: str, word: str = "", headline: str = "", **fields: Any) -> Event:
    known = {name: fields.pop(name) for name in ("facts", "location") if name in fields}
    verdict = {"word": word, "headline": headline, **known} if word else None
    return event("finished", test, outcome="failed", verdict=verdict, **fields)


def summary(path: Path, *events: Event) -> StepSummary:
    report = StepSummary(path)
    for one in events:
        report.handle(one)
    report.close()
    return report


def cells(row: str) -> list[str]:
    """What GitHub makes of a row: cells end at bars, and code is what it was before it was escaped."""
    return [
        unescape(re.sub(r"</?code>|^`|`$", "", cell.strip())) if "code>" in cell else cell.strip().strip("`")
        for cell in row.strip().strip("|").split("|")
    ]


def test_worst_comes_first_under_a_tally(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    summary(
        path,
        event("started", "t::fine"),
        event("finished", "t::fine", outcome="passed"),
        failed("t::plain", report="def test():\n>   assert 1 == 2\nE   assert 1 == 2\n\nt.py:2: AssertionError"),
        failed("t::leak", "LEAK", "threads grow by 1 per lap"),
        failed("t::stall", "STALL", "deadlock"),
        failed(
            "t::crash",
            "CRASH",
            "SIGSEGV in call",
            location={"file": "env.py", "line": 40, "function": "step"},
            facts={"signature": "SIGSEGV call f 1b64"},
            reproduce="python -m x",
        ),
    )
    text = path.read_text()
    assert text.startswith("before\n### rl-stability\n\n5 tests: 4 failed, 1 passed (1 CRASH, 1 STALL, 1 LEAK)\n")
    rows = [line for line in text.splitlines() if line.startswith("| **")]
    assert [cells(row)[:3] for row in rows] == [
        ["**CRASH**", "t::crash", "SIGSEGV in call`<br>`env.py:40 in step"],
        ["**STALL**", "t::stall", "deadlock"],
        ["**LEAK**", "t::leak", "threads grow by 1 per lap"],
        ["**FAILED**", "t::plain", "assert 1 == 2"],
    ]
    assert cells(rows[0])[3:] == ["SIGSEGV call f 1b64", "python -m x"]


def test_a_green_run_has_a_tally_and_no_table(tmp_path: Path) -> None:
    summary(tmp_path / "s.md", event("finished", "t", outcome="passed"))
    assert (tmp_path / "s.md").read_text() == "### rl-stability\n\n1 test: 1 passed\n\n\n"


ODD = [
    "a|b",
    "a\\|b",
    "`x`",
    "``",
    "<script>alert(1)</script>|",
    "**bold**|",
    "a\nb|c",
    "&amp;|",
    "[x](http://y)|",
    "\x1b[31m",
]


@pytest.mark.parametrize("text", ODD)
def test_nothing_is_taken_for_markdown(text: str) -> None:
    cell = code(text)
    assert "|" not in cell
    assert "\n" not in cell
    assert cell.startswith("<code>")
    inner = cell.removeprefix("<code>").removesuffix("</code>")
    assert not re.search(r"[`<>*_\[\]\\|\x00-\x1f]", inner)
    if "\x1b" not in text:
        assert unescape(inner) == " ".join(text.split())


@pytest.mark.parametrize("text", ["test_env.py::test_step[fast]", "<b>x</b> & *y* _z_ [a](b)", "ünï"])
def test_what_is_safe_in_a_code_span_stays_as_it_is(text: str) -> None:
    assert code(text) == f"`{text}`"


def test_a_run_with_very_many_failures_stays_below_githubs_limit(tmp_path: Path) -> None:
    path = tmp_path / "s.md"
    path.write_text("x" * 300_000)
    many = [failed(f"t{number:05}::{'|' * 2000}", "CRASH", "|" * 5000) for number in range(3000)]
    report = summary(path, *many)
    assert not report.trouble
    assert path.stat().st_size <= MOST_BYTES
    text = path.read_text()
    shown = text.count("| **CRASH** |")
    assert shown > 50
    assert f"... and {3000 - shown} more failures" in text
    assert "3000 tests: 3000 failed (3000 CRASH)" in text


def test_a_summary_without_room_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.md"
    path.write_text("x" * MOST_BYTES)
    summary(path, failed("t", "CRASH", "y"))
    assert path.stat().st_size == MOST_BYTES


def test_names_that_cannot_be_encoded_are_written_all_the_same(tmp_path: Path) -> None:
    report = summary(tmp_path / "s.md", failed("t\udcff", "CRASH", "x"))
    assert not report.trouble
    assert "t\\udcff" in (tmp_path / "s.md").read_text()


def test_a_file_that_cannot_be_written_is_trouble(tmp_path: Path) -> None:
    report = summary(tmp_path, failed("t", "CRASH", "x"))
    assert report.trouble == f"GITHUB_STEP_SUMMARY={tmp_path}: Is a directory; the step's summary is not written"

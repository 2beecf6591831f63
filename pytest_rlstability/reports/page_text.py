"""Texts of tests, prepared for the page: without terminal codes and overwritten lines, and not too long."""

from __future__ import annotations

import re

from pytest_rlstability.model.events import Finished

_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def readable(text: object, most: int) -> str:
    """*text* as a person would have seen it in a terminal, and at most about *most* characters of it.

    >>> readable("\\x1b[31mred\\x1b[0m 10%\\rdone", 100)
    'done'
    """
    shown = _TERMINAL_CODES.sub("", _shortened(str(text), most)).replace("\r\n", "\n")
    if "\r" in shown:
        shown = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in shown.split("\n"))
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", shown)


def error_line(report: str) -> str:
    """The line of a failure's text that pytest marks as the error, else its last line.

    >>> error_line("def test():\\n>   assert 1 == 2\\nE   assert 1 == 2\\n\\nt.py:2: AssertionError")
    'assert 1 == 2'
    """
    lines = [line for line in report.splitlines() if line.strip()]
    marked = next((line[1:].strip() for line in lines if line.startswith("E ")), "")
    return marked or (lines[-1].strip() if lines else "")


def cause_lines(end: Finished) -> list[str]:
    """Why a test failed, in a few lines: the headline, and what a diagnosis has found."""
    verdict = end.verdict
    if verdict is None:
        return [end.message or error_line(end.report)]
    diagnosis = next((text for title, text in verdict.sections if title == "Diagnosis"), "")
    # The first paragraph is the title of the diagnosis.
    return [verdict.headline, *diagnosis.partition("\n\n")[2].partition("\n\n")[0].splitlines()]


def _shortened(text: str, most: int) -> str:
    """The end says more than the beginning, so it gets two thirds of the room."""
    if len(text) <= most:
        return text
    head, tail = most // 3, most - most // 3
    return f"{text[:head]}\n[... {len(text) - most:,} characters left out of this page ...]\n{text[-tail:]}"

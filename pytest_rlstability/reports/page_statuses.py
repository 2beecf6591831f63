"""The ways in which a test can end, with the words, the order and the colours of the page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pytest_rlstability.model.events import Outcome
from pytest_rlstability.model.verdict import PLAIN_FAILURE, Word
from pytest_rlstability.reports.log_reader import Attempt


@dataclass(frozen=True, eq=False)
class Status:
    """One way to end. *one* and *many* are its nouns. *label* is what a row of the list shows (default: the name), and
    *tone* the name of its colour in ``page.css`` (default: the name; an unknown one has the colour of FAILED)."""

    name: str
    one: str
    many: str
    bad: bool = False
    label: str = ""
    tone: str = ""


FAILED = Status(PLAIN_FAILURE, "other failure", "other failures", bad=True)
UNFINISHED = Status("UNFINISHED", "unfinished test", "unfinished tests", bad=True, label="NO END")
XFAILED = Status("xfailed", "failed as expected", "failed as expected", tone="skipped")
SKIPPED = Status("skipped", "skipped", "skipped")
PASSED = Status("passed", "passed", "passed")
_VERDICTS = {word: Status(word.value, word.one, word.many, bad=True) for word in Word}
STATUSES = (*_VERDICTS.values(), FAILED, UNFINISHED, XFAILED, SKIPPED, PASSED)
"""Worst first."""


def status_of(attempt: Attempt) -> Status:
    end = attempt.end
    match end.outcome:
        case Outcome.FAILED:
            return _VERDICTS[end.verdict.word] if end.verdict else FAILED
        case Outcome.SKIPPED:
            return XFAILED if end.verdict or end.xfailed else SKIPPED
        case Outcome.PASSED:
            return PASSED
        case Outcome.INTERRUPTED:
            return UNFINISHED


def statuses_json() -> list[dict[str, Any]]:
    return [
        {**asdict(status), "label": status.label or status.name, "tone": status.tone or status.name.lower()}
        for status in STATUSES
    ]

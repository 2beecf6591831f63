"""What the engine says: plain frozen data that every report consumes and nothing here produces.

Data flows one way: test -> records and samples -> events -> verdict -> reports.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from _pytest.outcomes import Failed

Word = Literal["CRASH", "LEAK", "STALL", "FLAKY"]
Fact = str | int | float
Section = tuple[str, str]
"""A titled block of a report, ``(title, text)``; an empty title continues the headline."""


@dataclass(frozen=True)
class Verdict:
    """Why a test failed, in the shape every report shows it.

    ``Verdict("CRASH", "SIGSEGV in call", sections=(("", "stage: load"),), facts={"signal": "SIGSEGV"})``:
    the headline says what happened, the sections say where, *facts* are what machines group and sort by
    (they become the ``rl_stability.*`` JUnit properties and the JSONL fields).
    """

    word: Word
    headline: str
    sections: tuple[Section, ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.word}: {self.headline}"

    def text(self) -> str:
        """The whole report as plain text: headline first, then each section under its title."""
        lines = [self.title]
        for title, text in self.sections:
            if title:
                lines += ["", f"{title}:"]
            lines += [f"  {line}".rstrip() for line in text.rstrip("\n").split("\n")]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, object]:
        return {
            "word": self.word,
            "headline": self.headline,
            "sections": [list(section) for section in self.sections],
            "facts": dict(self.facts),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Verdict:
        sections: list[list[str]] = data["sections"]  # type: ignore[assignment]
        return cls(
            word=data["word"],  # type: ignore[arg-type]
            headline=str(data["headline"]),
            sections=tuple((title, text) for title, text in sections),
            facts=data["facts"],  # type: ignore[arg-type]
        )


class VerdictFailure(Failed):
    """Raised inside a test to fail it with a verdict; an ordinary pytest failure to everyone else."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.text(), pytrace=False)
        self.verdict = verdict


SCHEMA = 1
"""Of the event log. A reader ignores keys it does not know; this number changes when a known key changes meaning."""


def event(kind: str, test: str = "", **fields: object) -> dict[str, object]:
    """One event of a run as the log, the page and the metrics get it: JSON values only.

    Kinds: ``session`` (once, first), then for every test ``started``, any number of ``sample``, ``finished``.
    """
    return {"event": kind, "schema": SCHEMA, "test": test, "time": time.time(), **fields}

"""Why a test failed: the words for it, and the verdict that every report shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, Self

import pytest


class Word(StrEnum):
    """The first word of a failure, worst first. All reports take the words, their order and their nouns from here.

    >>> Word.CRASH.counted(2), Word("LEAK").counted(1)
    ('2 crashes', '1 leak')
    """

    one: str
    many: str

    CRASH = "CRASH", "crash", "crashes"
    STALL = "STALL", "stall", "stalls"
    LEAK = "LEAK", "leak", "leaks"
    MODEL = "MODEL", "model that does not come back", "models that do not come back"
    FLAKY = "FLAKY", "flaky test", "flaky tests"

    def __new__(cls, word: str, one: str = "", many: str = "") -> Self:
        member = str.__new__(cls, word)
        member._value_ = word
        member.one, member.many = one, many
        return member

    def counted(self, number: int) -> str:
        return f"{number:,} {self.one if number == 1 else self.many}"


PLAIN_FAILURE = "FAILED"
"""What reports call a failure without a verdict. It ranks after all words."""


class StallClass(StrEnum):
    """What a test did that made no progress: the ``class`` of a STALL."""

    DEADLOCK = "deadlock"
    """Every thread waits without end for something only another of them could give."""
    BLOCKED = "blocked"
    """It waits for something outside its processes, is stopped, or sleeps."""
    SPINNING = "spinning"
    """It uses processor time or switches threads, and reports no progress."""
    SLOW = "slow"
    """It was over its timeout and still moved."""
    UNKNOWN = "unknown"
    """This platform does not show what threads do."""


class CrashClass(StrEnum):
    """How a process ended: the ``class`` of a CRASH."""

    SIGNAL = "signal"
    EXIT = "exit"
    MEMORY = "memory"
    WATCHDOG = "watchdog"
    """A watchdog of another plugin ended it."""
    WORKER = "worker"
    """A process that the test had started died by a signal, and the test failed."""
    LOST = "lost"
    """Its exit status is unknown: its parent died."""


@dataclass(frozen=True)
class Location:
    """A line of code. *function* is empty where it is not known.

    >>> str(Location("/game/env.py", 40, "step"))
    '/game/env.py:40 in step'
    """

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}{f' in {self.function}' if self.function else ''}"


Fact = str | int | float
Section = tuple[str, str]
"""A titled block of a report, ``(title, text)``; an empty title continues the headline."""


@dataclass(frozen=True)
class Verdict:
    """Why a test failed, in the shape every report shows it.

    ``Verdict(Word.CRASH, "SIGSEGV in call", sections=(("", "stage: load"),), facts={"signal": "SIGSEGV"})``:
    the headline says what happened, the sections say how, *location* is the line of the user's code to look at first,
    *facts* are what machines group and sort by (they become the ``rl_stability.*`` JUnit properties).
    """

    word: Word
    headline: str
    sections: tuple[Section, ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)
    location: Location | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "word", Word(self.word))

    @property
    def title(self) -> str:
        return f"{self.word}: {self.headline}"

    def with_note(self, text: str) -> Self:
        """The same verdict with *text* right below the headline and the location."""
        first = sum(not title for title, _ in self.sections[:1])
        return replace(self, sections=(*self.sections[:first], ("", text), *self.sections[first:]))

    def text(self) -> str:
        """The whole report as plain text: headline first, then each section under its title."""
        lines = [self.title]
        for title, text in self.sections:
            if title:
                lines += ["", f"{title}:"]
            lines += [f"  {line}".rstrip() for line in text.rstrip("\n").split("\n")]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        return dict(plain_values(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        """Reads logs of earlier versions too, which have no location."""
        location = data.get("location")
        return cls(
            word=Word(data["word"]),
            headline=str(data.get("headline", "")),
            sections=tuple((str(title), str(text)) for title, text in data.get("sections", ())),
            facts=dict(data.get("facts", {})),
            location=None if location is None else Location(**location),
        )


def is_out_of_memory(verdict: Verdict) -> bool:
    return verdict.facts.get("class") == CrashClass.MEMORY


def plain_values(value: Any) -> Any:
    """A dataclass, or part of one, in JSON's exact types: execnet, which carries it through xdist, takes no others."""
    if is_dataclass(value):
        return {one.name: plain_values(getattr(value, one.name)) for one in fields(value)}
    match value:
        case str():
            return str(value)
        case list() | tuple():
            return [plain_values(one) for one in value]
        case Mapping():
            return {name: plain_values(one) for name, one in value.items()}
    return value


class VerdictFailure(pytest.fail.Exception):  # type: ignore[name-defined,misc]
    """Raised inside a test to fail it with a verdict; an ordinary pytest failure to everyone else."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.text(), pytrace=False)
        self.verdict = verdict

"""One call to an env, what a sequence of calls brings to light, and how to search for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from pytest_rlstability.model.verdict import Word


class Op(IntEnum):
    """What is done. No member is 0: that marks the unused cells of the journal. DROP forgets the env and collects."""

    MAKE = 1
    RESET = 2
    STEP = 3
    RENDER = 4
    CLOSE = 5
    PICKLE = 6
    COPY = 7
    DROP = 8


@dataclass(frozen=True)
class Call:
    """A call to env number *env*. The *value* is an action for STEP, ``(seed, options)`` for RESET, and for PICKLE and
    COPY the number that the duplicate gets, or None where it takes the place of the env. One that is not *valid*
    breaks Gymnasium's rules."""

    op: Op
    env: int = 0
    value: Any = None
    valid: bool = True

    @property
    def name(self) -> str:
        return f"{self.op.name.lower()}()"


class Kind(StrEnum):
    """What was found. The first three are the words of the verdicts."""

    CRASH = Word.CRASH.value
    STALL = Word.STALL.value
    LEAK = Word.LEAK.value
    EXCEPTION = "EXCEPTION"
    SPACE = "SPACE"
    NAN = "NAN"
    ALIAS = "ALIAS"
    DIFFERS = "DIFFERS"
    LEFTOVER = "LEFTOVER"


Signature = tuple[Kind, str]


@dataclass(frozen=True)
class Finding:
    """What was found after the call number *at*. Two findings of the same *kind* and *detail* are the same fault;
    *text* describes this one, *stack* and *output* are its evidence. An ALIAS is of the observation that call number
    *since* has returned."""

    kind: Kind
    detail: str
    text: str
    at: int = 0
    stack: str = ""
    output: str = ""
    since: int = 0

    @property
    def signature(self) -> Signature:
        return self.kind, self.detail


class FoundError(Exception):
    """Unwinds an attempt that has a finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


@dataclass(frozen=True)
class Settings:
    """How to search. A call that takes longer than *stall_after* counts as one that never returns. *options* are the
    ones that resets may have; None is none."""

    seconds: float = 120.0
    seed: int = 0
    invalid: bool = False
    stall_after: float = 10.0
    shrink_seconds: float = 60.0
    options: tuple[Any, ...] = (None, {})


@dataclass(frozen=True)
class Played:
    """What came of some calls: the *finding*, if any, the *calls* that were made, and which of them, by number, have
    *raised* an exception that is allowed."""

    finding: Finding | None
    calls: tuple[Call, ...]
    raised: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Growth:
    """What grows with each lap: the name of the *signal*, and how much."""

    signal: str
    per_lap: float


@dataclass(frozen=True)
class Case:
    """A finding with the calls that lead to it. It was seen in *seen* of *tries* replays. The attempt that found it is
    made again from its *seed*; *journal* is what it did. Of a fault that comes with repetition, the calls from number
    *lap_start* on are the lap. Two interpreters with these *hash_seeds* have answered differently; where they are
    equal, the env among other calls and alone."""

    finding: Finding
    played: Played
    seed: int
    seen: int = 1
    tries: int = 1
    journal: tuple[Call, ...] = ()
    lap_start: int = 0
    growth: Growth | None = None
    hash_seeds: tuple[int, int] = (0, 0)

    @property
    def calls(self) -> tuple[Call, ...]:
        return self.played.calls

"""One call to an env, and what a sequence of calls can bring to light."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from pytest_rlstability.model.verdict import Word


class Op(IntEnum):
    """What is done. No member is 0: that marks the unused cells of the journal."""

    MAKE = 1
    RESET = 2
    STEP = 3
    RENDER = 4
    CLOSE = 5
    PICKLE = 6
    COPY = 7


@dataclass(frozen=True)
class Call:
    """A call to env number *env*. The *value* is an action for STEP, and ``(seed, options)`` for RESET. One that is not
    *valid* breaks Gymnasium's rules."""

    op: Op
    env: int = 0
    value: Any = None
    valid: bool = True


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


@dataclass(frozen=True)
class Finding:
    """What was found after the call number *at*. Two findings of the same *kind* and *detail* are the same fault;
    *text* describes this one, *stack* and *output* are its evidence."""

    kind: Kind
    detail: str
    text: str
    at: int = 0
    stack: str = ""
    output: str = ""

    @property
    def signature(self) -> tuple[Kind, str]:
        return self.kind, self.detail


class FoundError(Exception):
    """Unwinds an attempt that has a finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding

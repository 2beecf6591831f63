"""Leaks and innocents drawn from reinforcement-learning code: what ``benchmarks/leaks.py`` measures detectors with.

Each case is a factory: ``make(random) -> lap``, a function without arguments that is called many times in one
process. Nothing in here knows about any detector.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

Lap = Callable[[], object]
Make = Callable[[Random], Lap]


@dataclass(frozen=True)
class Case:
    """One case. *blame* is the text that a right first answer contains: the name of the holder or of the line."""

    name: str
    make: Make
    leaks: bool
    blame: str = ""
    python: bool = False
    """What leaks is Python objects, so that the line and the holder can be named."""


CASES: dict[str, Case] = {}


def leak(blame: str = "", *, python: bool = False) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        CASES[make.__name__] = Case(make.__name__, make, True, blame, python)
        return make

    return register


def innocent(make: Make) -> Make:
    CASES[make.__name__] = Case(make.__name__, make, False)
    return make


def load() -> dict[str, Case]:
    """All cases by name, leaks first."""
    for module in ("python_leaks", "native_leaks", "resource_leaks", "innocents"):
        importlib.import_module(f"leak_corpus.{module}")
    return CASES

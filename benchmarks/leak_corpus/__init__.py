"""Leaks and innocents drawn from reinforcement-learning code: what ``benchmarks/leaks.py`` measures detectors with.

Each case is a factory: ``make(random) -> lap``, a function without arguments that is called many times in one
process. Nothing in here knows about any detector.
"""

from __future__ import annotations

import functools
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
    size: float | None = None
    """What a lap leaks, where it is known beforehand: bytes of memory, or the number of descriptors and the like."""


CASES: dict[str, Case] = {}


def leak(blame: str = "", *, python: bool = False, size: float | None = None) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        CASES[make.__name__] = Case(make.__name__, make, True, blame, python, size)
        return make

    return register


def innocent(make: Make) -> Make:
    CASES[make.__name__] = Case(make.__name__, make, False)
    return make


def twins(
    blame: str, *, python: bool = True, size: float | None = None
) -> Callable[[Callable[[Random, bool], Lap]], None]:
    """Register ``make(random, leaks)`` twice: under its name as a leak, with ``_innocent`` added as its twin."""

    def register(make: Callable[[Random, bool], Lap]) -> None:
        name = make.__name__
        CASES[name] = Case(name, lambda random: make(random, True), True, blame, python, size)
        CASES[f"{name}_innocent"] = Case(f"{name}_innocent", lambda random: make(random, False), False)

    return register


_FIRST = ("python_leaks", "native_leaks", "resource_leaks", "innocents")
_KNOWN = "twins_slow"
"""Written after a look at the rules, and so part of the known half."""
_TWINS = ("twins_python", "twins_environments", "twins_training", "twins_system")
_THIRD = ("third_python", "third_libraries")
"""Written for the third round without a look at the rules."""


def load(half: str = "all") -> dict[str, Case]:
    """Cases by name. *half* is ``old`` (those that the first rules were made with), ``known`` or ``held`` (the two
    halves of the rest by a seeded draw: rules may be made with the known half only), or ``all``."""
    chosen = _halves()[half]
    return {name: case for name, case in CASES.items() if name in chosen}


@functools.cache
def _halves() -> dict[str, set[str]]:
    for module in _FIRST:
        importlib.import_module(f"leak_corpus.{module}")
    old = set(CASES)
    for module in _TWINS:
        importlib.import_module(f"leak_corpus.{module}")
    drawn = sorted(set(CASES) - old)
    known = set(Random(17).sample(drawn, len(drawn) // 2))
    importlib.import_module(f"leak_corpus.{_KNOWN}")
    known |= set(CASES) - old - set(drawn)
    before = set(CASES)
    for module in _THIRD:
        importlib.import_module(f"leak_corpus.{module}")
    third = sorted(set(CASES) - before)
    seen = set(Random(29).sample(third, len(third) // 2))
    return {
        "old": old,
        "known": known,
        "held": set(drawn) - known,
        "third-known": seen,
        "third-held": set(third) - seen,
        "all": set(CASES),
    }

"""The counters that ``rl_probe`` adds, which are judged like memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_rlstability.leaks.check import Watched
from pytest_rlstability.leaks.report import amount, table
from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.model.user_code import here
from pytest_rlstability.model.verdict import Fact, Location, Section, Verdict, VerdictFailure, Word
from pytest_rlstability.verdicts.leak import Evidence, LeakState, Rule, judge

_TINY = 1e-12


class ProbeError(Exception):
    """A probe raised, or returned something that is not a number."""


@dataclass(frozen=True)
class Limits:
    """The limits of a probe: its value, its growth per minute and per lap; None where there is no limit."""

    limit: float | None = None
    per_minute: float | None = None
    per_lap: float | None = None


class ProbeSignal(Signal):
    """A user's counter as a signal. Reading a value above its limit fails the test at once."""

    group = ""
    exact = True

    def __init__(self, name: str, read: Callable[[], object], limits: Limits) -> None:
        self.name = name
        self.title = f"probe {name}"
        self.limits = limits
        self.most = limits.limit
        self.function = read
        """A test that is repeated whole gives a new one with each lap."""
        self.first: float | None = None
        self.last = 0.0
        self.started = time.monotonic()
        self.location = next((Location(*line) for line in here().lines), None)

    def read(self) -> float:
        self.last = self._number()
        if self.first is None:
            self.first = self.last
        if self.limits.limit is not None and self.last > self.limits.limit:
            reached, allowed = amount(self.last, self.unit), amount(self.limits.limit, self.unit)
            raise self.failure(f"reached {reached} (limit {allowed})", self.limits.limit)
        return self.last

    def failure(self, what: str, limit: float, *sections: Section, **facts: Fact) -> VerdictFailure:
        known = {"signal": self.name, "class": "probe", "limit": limit, **facts}
        return VerdictFailure(Verdict(Word.LEAK, f"{self.title} {what}", sections, known, self.location))

    def _number(self) -> float:
        try:
            value = self.function()
        except Exception as error:
            raise ProbeError(f"rl_probe {self.name!r} raised {type(error).__name__}: {error}") from error
        if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
            raise ProbeError(f"rl_probe {self.name!r} gave {value!r}, which is not a number")
        try:
            number = float(value)
        except Exception as error:
            raise ProbeError(f"rl_probe {self.name!r} gave {value!r}, which is not a number: {error}") from error
        if not math.isfinite(number):
            raise ProbeError(f"rl_probe {self.name!r} gave {number}, which is not a number to judge")
        return number


class ProbeBook:
    """The probes of one test."""

    def __init__(self) -> None:
        self._probes: dict[str, ProbeSignal] = {}
        self._charts: dict[str, Callable[[], Mapping[str, float]]] = {}

    def add(self, name: str, read: Callable[[], object], limits: Limits) -> None:
        """Add a probe and read it once, so that a broken one fails where it is written."""
        if name not in self._probes:
            self._probes[name] = ProbeSignal(name, read, limits)
        self._probes[name].function = read
        self._probes[name].read()

    def chart(self, name: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Add counts to every sample, without judging them. A second call with *name* replaces the first."""
        self._charts[name] = read

    def with_charts(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """*sample* with the charted counts among its values."""
        values = {name: value for read in self._charts.values() for name, value in read().items()}
        return {**sample, "values": {**values, **sample["values"]}}

    def watched(self) -> list[Watched]:
        """The signals of these probes, for a leak check."""
        found = []
        for probe in self._probes.values():
            limits = probe.limits
            if limits.per_lap is not None or limits.per_minute is None:
                promised = limits.per_lap if limits.per_lap is not None else math.inf
                found.append(Watched(probe, Rule(limit=promised, smallest=_TINY, resolution=_TINY, exact=True)))
            if limits.per_minute is not None:
                rule = Rule(limit=limits.per_minute, smallest=max(limits.per_minute, _TINY), exact=True)
                found.append(Watched(probe, rule, by_minute=True))
        return found

    def values(self) -> Mapping[str, float]:
        return {name: probe.last for name, probe in self._probes.items()}

    def judge_simple_laps(self, watched: list[Watched], laps: int, seconds: float) -> None:
        """Judge the probes of a loop that was not a leak check."""
        evidence = Evidence(laps=laps, seconds=seconds, budget=max(seconds, 1e-6), final=True)
        for entry in watched:
            entry.judgement = judge(entry.series.laps, entry.series.values, entry.rule, evidence)
            if entry.judgement.state == LeakState.LEAK:
                rate, allowed = amount(entry.judgement.per_lap, "count"), amount(entry.rule.limit, "count")
                raise self._probes[entry.signal.name].failure(
                    f"grows by {rate} per {entry.per} (limit {allowed})",
                    entry.rule.limit,
                    (f"over {laps} laps", table(watched)),
                    laps=laps,
                    per_lap=round(entry.judgement.per_lap, 3),
                )

    def judge_at_end(self) -> None:
        """Judge what needs no laps: the limit of the value, and the growth per minute."""
        for probe in self._probes.values():
            probe.read()
            allowed, minutes = probe.limits.per_minute, (time.monotonic() - probe.started) / 60
            grown = probe.last - (probe.first or 0.0)
            if allowed is not None and grown > allowed * max(1.0, minutes):
                limit = f"limit {amount(allowed, 'count')} per minute"
                raise probe.failure(f"grew by {amount(grown, 'count')} in {minutes * 60:.0f} s ({limit})", allowed)


_book = pytest.StashKey[ProbeBook]()


def probes_of(item: pytest.Item) -> ProbeBook:
    """The probes of *item*; the same for all laps of a test that is repeated whole."""
    return item.stash.setdefault(_book, ProbeBook())

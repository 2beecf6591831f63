"""Domain counters that are judged like memory: ``rl_probe("food_sources", lambda: len(env.food), limit=50)``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import pytest

from pytest_rlstability.events import Fact, Verdict, VerdictFailure
from pytest_rlstability.leaks.check import Watched
from pytest_rlstability.leaks.report import amount, table
from pytest_rlstability.signals.protocol import Signal
from pytest_rlstability.verdicts.leak import Evidence, Rule, judge

_TINY = 1e-12


class ProbeError(Exception):
    """A probe raised, or gave something that is not a number; the text names it."""


@dataclass(frozen=True)
class Limits:
    """What a probe may do: the value itself, its growth per lap and per minute; None where nothing is promised."""

    limit: float | None = None
    per_minute: float | None = None
    per_lap: float | None = None


class ProbeSignal(Signal):
    """A user's counter as a signal. Reading it past its absolute limit fails the test there and then."""

    exact = True

    def __init__(self, name: str, read: Callable[[], object], limits: Limits) -> None:
        self.name = name
        self.title = f"probe {name}"
        self.limits = limits
        self.most = limits.limit
        self._read = read
        self.first: float | None = None
        self.last = 0.0
        self.started = time.monotonic()

    def rebind(self, read: Callable[[], object]) -> None:
        """The same counter of a new lap's objects."""
        self._read = read

    def read(self) -> float:
        self.last = self._number()
        if self.first is None:
            self.first = self.last
        if self.limits.limit is not None and self.last > self.limits.limit:
            reached, allowed = amount(self.last, self.unit), amount(self.limits.limit, self.unit)
            facts: dict[str, Fact] = {"signal": self.name, "class": "probe", "limit": self.limits.limit}
            raise VerdictFailure(Verdict("LEAK", f"{self.title} reached {reached} (limit {allowed})", facts=facts))
        return self.last

    def _number(self) -> float:
        try:
            value = self._read()
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

    def add(self, name: str, read: Callable[[], object], limits: Limits) -> ProbeSignal:
        """Take up a probe and read it once, so that a broken one fails where it is written."""
        probe = self._probes.get(name)
        if probe is None:
            probe = self._probes[name] = ProbeSignal(name, read, limits)
        probe.rebind(read)
        probe.read()
        return probe

    def chart(self, name: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Take up counts that are told with every sample and never judged; *name* replaces those of the lap before."""
        self._charts[name] = read

    def with_charts(self, sample: Mapping[str, object]) -> Mapping[str, object]:
        """*sample* with the charted counts among its values."""
        values = {name: value for read in self._charts.values() for name, value in read().items()}
        return {**sample, "values": {**values, **cast("Mapping[str, float]", sample["values"])}}

    def __bool__(self) -> bool:
        return bool(self._probes)

    def watched(self) -> list[Watched]:
        """What a leak check has to watch for these probes."""
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
        """Judge the probes of a loop that was not a leak check: what its few laps can show."""
        evidence = Evidence(laps=laps, seconds=seconds, budget=max(seconds, 1e-6), final=True)
        for entry in watched:
            entry.judgement = judge(entry.series.laps, entry.series.values, entry.rule, evidence)
            if entry.judgement.state == "leak":
                per = "minute" if entry.by_minute else "lap"
                rate, allowed = amount(entry.judgement.per_lap, "count"), amount(entry.rule.limit, "count")
                headline = f"{entry.signal.title} grows by {rate} per {per} (limit {allowed})"
                facts: dict[str, Fact] = {
                    "signal": entry.signal.name,
                    "class": "probe",
                    "limit": entry.rule.limit,
                    "laps": laps,
                }
                facts["per_lap"] = round(entry.judgement.per_lap, 3)
                raise VerdictFailure(Verdict("LEAK", headline, ((f"over {laps} laps", table(watched)),), facts))

    def judge_at_end(self) -> None:
        """Judge what needs no laps: the absolute limits, and growth beyond a minute's allowance for each minute."""
        for probe in self._probes.values():
            probe.read()
            allowed, minutes = probe.limits.per_minute, (time.monotonic() - probe.started) / 60
            grown = probe.last - (probe.first or 0.0)
            if allowed is not None and grown > allowed * max(1.0, minutes):
                headline = f"{probe.title} grew by {amount(grown, 'count')} in {minutes * 60:.0f} s"
                facts: dict[str, Fact] = {"signal": probe.name, "class": "probe", "limit": allowed}
                raise VerdictFailure(
                    Verdict("LEAK", f"{headline} (limit {amount(allowed, 'count')} per minute)", facts=facts)
                )


_book = pytest.StashKey[ProbeBook]()


def probes_of(item: pytest.Item) -> ProbeBook:
    """The probes of *item*, kept through all laps of a test that is repeated whole."""
    return item.stash.setdefault(_book, ProbeBook())

"""The counters that ``rl_probe`` adds, which are judged like memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any
from warnings import warn

import pytest

from pytest_rlstability.config.options import settings_of
from pytest_rlstability.leaks.report import amount, table
from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.leaks.watched import Watched
from pytest_rlstability.model.levels import CRITICAL, Levels
from pytest_rlstability.model.messages import Sampled
from pytest_rlstability.model.progress_channel import Channel
from pytest_rlstability.model.user_code import here
from pytest_rlstability.model.verdict import Fact, Location, Section, Verdict, VerdictFailure, Word
from pytest_rlstability.verdicts.leak import Evidence, LeakState, Rule, judge

_TINY = 1e-12
_MOST_SHOWN = 1000


class ProbeError(Exception):
    """A probe raised, or returned something that is not a number."""


class ProbeSignal(Signal):
    """A user's counter as a signal. Reading a value above its limit, *most*, fails the test at once."""

    group = ""
    exact = True

    def __init__(self, name: str, most: float | None, per_minute: float | None, per_lap: float | None) -> None:
        self.name = name
        self.title = f"probe {name}"
        self.most, self.per_minute, self.per_lap = most, per_minute, per_lap
        self.function: Callable[[], object]
        """A test that is repeated whole gives a new one with each lap."""
        self.first: float | None = None
        self.last = 0.0
        self.started = time.monotonic()
        self.location = next((Location(*line) for line in here().lines), None)
        self.levels: Levels | None = None

    def set_levels(self, warning: float | None, critical: float | None, clean_up: Callable[[], object] | None) -> None:
        """The levels of the value. At the critical one *clean_up* is called, and must bring the value below it."""

        def cleaned() -> float:
            assert clean_up is not None
            clean_up()
            return self._number()

        cleaner = None if clean_up is None else cleaned
        self.levels = Levels(self.name, warning=warning, critical=critical, clean_up=cleaner)

    def read(self) -> float:
        self.last = self._number()
        for crossing in self.levels.note(self.last, time.monotonic() - self.started) if self.levels else ():
            if crossing.level == CRITICAL and (crossing.freed is None or not crossing.worked):
                why = "" if crossing.freed is None else f"; the clean-up freed {amount(crossing.freed, self.unit)}"
                reached, allowed = amount(crossing.value, self.unit), amount(crossing.limit, self.unit)
                raise self.failure(f"reached {reached} (critical level {allowed}){why}", crossing.limit)
            if crossing.freed is not None:
                self.last -= crossing.freed
        if self.first is None:
            self.first = self.last
        if self.most is not None and self.last > self.most:
            reached, allowed = amount(self.last, self.unit), amount(self.most, self.unit)
            raise self.failure(f"reached {reached} (limit {allowed})", self.most)
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


class Probes:
    """The probes of one test. Call it with a name, a function without arguments that returns a number, and limits.

    ``rl_probe("food_sources", lambda: len(env.food), limit=50, per_minute=5, per_lap=0)``: never above 50, at most
    5 more each minute, and no growth that goes on from lap to lap. ``critical=80, on_critical=env.clean_up``: at 80 the
    clean-up is called, and must bring the value below that.
    """

    def __init__(self, judged: bool) -> None:
        self._judged = judged
        self._probes: dict[str, ProbeSignal] = {}
        self._charts: dict[str, Callable[[], Mapping[str, float]]] = {}

    def __call__(
        self,
        name: str,
        read: Callable[[], object],
        *,
        limit: float | None = None,
        per_minute: float | None = None,
        per_lap: float | None = None,
        warning: float | None = None,
        critical: float | None = None,
        on_critical: Callable[[], object] | None = None,
    ) -> None:
        """Add a probe and read it once, so that a broken one fails where it is written."""
        if not callable(read):
            raise TypeError(f"rl_probe {name!r} needs a function that gives a number, not {read!r}")
        limits = (limit, per_minute, per_lap) if self._judged else (None, None, None)
        probe = self._probes.get(name)
        if probe is None:
            probe = self._probes[name] = ProbeSignal(name, *limits)
            if len(self._probes) == _MOST_SHOWN + 1:
                warn(f"rl_probe: only the first {_MOST_SHOWN:,} probes are shown; all are judged", stacklevel=2)
        probe.function = read
        if probe.levels is None and critical is not None and self._judged:
            probe.set_levels(warning, critical, on_critical)
        probe.read()

    def chart(self, name: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Add counts to every sample, without judging them. A second call with *name* replaces the first."""
        self._charts[name] = read

    def send(self, channel: Channel, sample: Mapping[str, Any]) -> None:
        """Send *sample* with the charted counts among its values."""
        values = {name: value for read in self._charts.values() for name, value in read().items()}
        channel.send(Sampled(**{**sample, "values": {**values, **sample["values"]}}))

    def watched(self) -> list[Watched]:
        """The signals of these probes, for a leak check."""
        found = []
        for probe in self._probes.values():
            if probe.per_lap is not None or probe.per_minute is None:
                promised = probe.per_lap if probe.per_lap is not None else math.inf
                judged = probe.per_lap is not None or probe.most is not None
                rule = Rule(limit=promised, smallest=_TINY, resolution=_TINY, exact=True, judged=judged)
                found.append(Watched(probe, rule))
            if probe.per_minute is not None:
                rule = Rule(limit=probe.per_minute, smallest=max(probe.per_minute, _TINY), exact=True)
                found.append(Watched(probe, rule, by_minute=True))
        return found

    def values(self) -> Mapping[str, float]:
        """What a sample shows; more probes than anybody can look at are judged all the same."""
        return {name: probe.last for name, probe in islice(self._probes.items(), _MOST_SHOWN)}

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
            allowed, minutes = probe.per_minute, (time.monotonic() - probe.started) / 60
            grown = probe.last - (probe.first or 0.0)
            if allowed is not None and grown > allowed * max(1.0, minutes):
                limit = f"limit {amount(allowed, 'count')} per minute"
                raise probe.failure(f"grew by {amount(grown, 'count')} in {minutes * 60:.0f} s ({limit})", allowed)


_probes = pytest.StashKey[Probes]()


def probes_of(item: pytest.Item) -> Probes:
    """The probes of *item*; the same for all laps of a test that is repeated whole."""
    return item.stash.setdefault(_probes, Probes(judged=settings_of(item.config).enabled))

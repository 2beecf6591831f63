"""A soak: the same signals and the same judge as a leak check, for a fixed time; and what its report says besides."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import pytest

from pytest_rlstability.config.plan import time_for_holders
from pytest_rlstability.leaks.check import LeakCheck
from pytest_rlstability.leaks.foreign import rule_out_others
from pytest_rlstability.leaks.probes import probes_of
from pytest_rlstability.leaks.report import amount
from pytest_rlstability.leaks.settings import LeakSettings, leak_settings
from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.model.channel import channel_of
from pytest_rlstability.model.growth import spread
from pytest_rlstability.model.series import Series
from pytest_rlstability.model.soak_state import SoakState
from pytest_rlstability.model.thinning import Thinning
from pytest_rlstability.model.units import KEPT_BYTES
from pytest_rlstability.model.verdict import Section, Word
from pytest_rlstability.osinfo.linux import descriptor_target
from pytest_rlstability.osinfo.memory import memory_room, resident_memory
from pytest_rlstability.verdicts.leak import FEWEST_SAMPLES, Evidence, LeakState, Rule, judge

SAMPLING_SHARE = 0.02
LONGEST_INTERVAL = 10.0
"""Seconds between two samples once a soak is under way."""
FEWEST_IN_A_SOAK = 4 * FEWEST_SAMPLES
"""Samples to judge by, whatever ``every`` says."""
STRETCH = 0.1
"""How many seconds of laps run before the clock is read again."""
EARLY = 0.1
"""No verdict so far is shown before this share of the time: everything grows at the beginning."""
ROOM_SHARE = 0.5
"""Steady growth ends the soak when it has taken this share of the free memory."""
_FEWEST = 8
_DRIFT = 1.25
"""Laps count as slower or faster from this factor on. A busy machine causes smaller ones."""
_SURE = 2.0
"""They must also differ by this many standard deviations of single laps."""
_MEMORY_RULE = Rule(smallest=2.0**20, resolution=64.0)
MOST_BYTES = 16 * KEPT_BYTES
_OURS = re.compile(r".*/rlstability-[^/]*/\d+\.(out|err)")


class SoakCheck(LeakCheck):
    """A leak check that goes on for ``settings.duration`` and is judged at its end.

    What looks like a leak in the first minutes may be a buffer that takes an hour to fill, so a suspicion does not end
    the soak. Growth that would starve the machine does. What the check keeps is bounded, however long it runs.
    """

    def __init__(self, settings: LeakSettings, **others: object) -> None:
        super().__init__(replace(settings, laps=None), **others)  # type: ignore[arg-type]
        self.duration = settings.duration or 0.0
        self._thinning = Thinning(longest=LONGEST_INTERVAL if settings.every is None else 0.0)
        self.memory = Series()
        self.lap_times = Series()
        self.ended_early = False
        self._soaked_for: float | None = None
        self._judged_at = 0.0
        self._output = CapturedOutput()

    # what the caller sees

    @property
    def seconds_left(self) -> float:
        """The time to find the holder of what leaked. It comes on top of the soak's, and is longer for a long soak."""
        spent = 0.0 if self._soaked_for is None else self.elapsed - self._soaked_for
        return time_for_holders(self.duration, self.settings.budget) - spent

    def sections(self) -> list[Section]:
        return [("soak", "\n".join(self.state().lines()))]

    def state(self) -> SoakState:
        """The state of the soak now."""
        growing = [entry for entry in self.watched if entry.judgement.growing]
        word, suspect = self._verdict_so_far()
        per_second = growth_per_second(self.memory.laps, self.memory.values)
        laps = pace(self.lap_times.laps, self.lap_times.values)
        limit = self.settings.memory_limit
        return SoakState(
            duration=self.duration,
            seconds=round(self.elapsed if self._soaked_for is None else self._soaked_for, 3),
            laps=self.laps,
            verdict=word,
            growing=suspect,
            per_lap={entry.signal.name: round(entry.judgement.per_lap, 3) for entry in growing},
            memory=self.memory.last,
            memory_per_hour=round(per_second * 3600),
            hours_to_limit=memory_room(limit) / per_second / 3600 if per_second else None,
            limit="the memory of this machine" if limit is None else f"the limit of {amount(limit, 'bytes')}",
            lap_seconds_first=laps.first,
            lap_seconds_last=laps.last,
            laps_drift=laps.drifts,
            ended_early=self.ended_early,
        )

    # the phases

    def _begin_measuring(self) -> None:
        self.memory.clear()
        self.lap_times.clear()
        super()._begin_measuring()
        self._budget_from = self._opened_at

    def _measure(self) -> Iterator[int]:
        while self._time_left() > 0 and not self.ended_early:
            yield from self._run_for(min(self._interval(), self._time_left()))
            if self.elapsed - self._judged_at >= min(max(0.5, self.elapsed / 20), LONGEST_INTERVAL):
                self._judged_at = self.elapsed
                self.judge_now(final=False)
                if self._starves():
                    yield from rule_out_others(self)
                    self.ended_early = self._starves()
        self._soaked_for = self.elapsed
        self.judge_now(final=True)
        yield from rule_out_others(self)

    def _run_for(self, seconds: float) -> Iterator[int]:
        """Laps for so long, or as many as growth leaves room for, then a sample.

        The laps come in short stretches, so that the clock is read even if laps suddenly take a thousand times as long.
        """
        laps_before, seconds_before = self.laps, self.lap_seconds
        most, until, count = self._laps_to_ceiling(), self._clock() + seconds, 1
        while True:
            left = until - self._clock()
            fitting = int(min(left, STRETCH) / self._lap_cost) if self._lap_cost > 0 else 1
            count = max(1, min(2 * count, fitting, most - (self.laps - laps_before)))
            yield from self._count_laps(count)
            if self._clock() >= until or self.laps - laps_before >= most:
                break
        self.lap_times.add(self.elapsed, (self.lap_seconds - seconds_before) / (self.laps - laps_before))
        self._sample()

    def _interval(self) -> float:
        """Seconds from one sample to the next: short at first, and never so long that there are too few to judge."""
        wanted = self.settings.every or min(self.elapsed / 100, LONGEST_INTERVAL)
        affordable = self._sample_cost / SAMPLING_SHARE
        return min(max(wanted, affordable), self.duration / FEWEST_IN_A_SOAK)

    def _time_to_measure(self) -> float:
        return self.duration

    def _starves(self) -> bool:
        return any(entry.series.growth >= entry.rule.ceiling for entry in self.leaks())

    # samples

    def _sample(self) -> None:
        self._output.trim()
        self.memory.add(self.elapsed, resident_memory(os.getpid()))
        super()._sample()

    def _sample_record(self, charted: Mapping[str, float]) -> dict[str, object]:
        record = super()._sample_record(charted)
        if len(self.lap_times):
            record["lap_seconds"] = self.lap_times.last
        return {**record, "soak": self.state().to_dict(), "waits_for": None}

    def _rule(self, signal: Signal) -> Rule:
        """Memory may grow as long as there is room, so a count of blocks never ends a soak early."""
        rule = super()._rule(signal)
        if signal.group != "memory":
            return rule
        room = memory_room(self.settings.memory_limit) * ROOM_SHARE
        return replace(rule, ceiling=max(room, 2.0**24) if signal.unit == "bytes" else float("inf"))

    def _verdict_so_far(self) -> tuple[str, str]:
        """The word, and what grows; empty while it is too early to say."""
        ended = self._soaked_for is not None
        if not ended and self.elapsed < EARLY * self.duration:
            return "", ""
        # other processes are ruled out at the end only
        leaks = [entry for entry in self.leaks() if ended or not entry.signal.foreign]
        for entry in leaks or self.undecided():
            growth = f"{entry.signal.title} +{amount(entry.judgement.per_lap, entry.signal.unit)} per {entry.per}"
            return Word.LEAK if leaks else LeakState.UNDECIDED, growth
        return LeakState.CLEAN, ""


def check_for(item: pytest.Item) -> LeakCheck:
    """The check of *item*, a soak if it has a duration. Its samples go to pytest's process."""
    settings, probes = leak_settings(item), probes_of(item)
    kind = LeakCheck if settings.duration is None else SoakCheck
    return kind(settings, emit=partial(probes.send, channel_of(item.config)), extra=probes.watched())


@dataclass(frozen=True)
class Pace:
    """Seconds a lap took in the first and in the last quarter of the time; *drifts* when they differ beyond noise."""

    first: float
    last: float
    drifts: bool


def pace(moments: Sequence[float], lap_seconds: Sequence[float]) -> Pace:
    """How lap times changed: *lap_seconds* is what a lap took at each of *moments*.

    >>> moments = list(range(100))
    >>> pace(moments, [0.012 if moment < 50 else 0.019 for moment in moments])
    Pace(first=0.012, last=0.019, drifts=True)
    """
    if len(moments) < _FEWEST:
        middle = median(lap_seconds) if lap_seconds else 0.0
        return Pace(middle, middle, drifts=False)
    start, quarter = moments[0], (moments[-1] - moments[0]) / 4
    early = [value for moment, value in zip(moments, lap_seconds, strict=True) if moment <= start + quarter]
    late = [value for moment, value in zip(moments, lap_seconds, strict=True) if moment >= start + 3 * quarter]
    first, last = median(early), median(late)
    factor = max(first, last) / max(min(first, last), 1e-12)
    return Pace(first, last, factor >= _DRIFT and abs(last - first) > _SURE * max(spread(early), spread(late)))


def growth_per_second(moments: Sequence[float], memory: Sequence[float]) -> float:
    """Bytes per second by which *memory* still grows; 0 if it does not grow or levels off.

    >>> seconds = list(range(200))
    >>> growth_per_second(seconds, [5e8 + 1e5 * second for second in seconds])
    100000.0
    >>> growth_per_second(seconds, [5e8 + 1e5 * min(second, 60) for second in seconds])
    0.0
    """
    if len(moments) < _FEWEST:
        return 0.0
    span = moments[-1] - moments[0]
    judged = judge(moments, memory, _MEMORY_RULE, Evidence(laps=span, seconds=span, budget=span, final=True))
    return max(judged.per_lap, 0.0) if judged.growing else 0.0


class CapturedOutput:
    """The files that capture the output of a test process. Call ``trim()`` now and then to keep them small.

    Otherwise a trainer that prints its progress for days fills the disk, and the memory of the process that reads it.
    Output that we do not capture (``-s``) is not touched.
    """

    def __init__(self, descriptors: tuple[int, ...] = (1, 2)) -> None:
        self._left_out = {one: 0 for one in descriptors if _OURS.fullmatch(descriptor_target("self", one))}

    def trim(self) -> None:
        for descriptor in self._left_out:
            size = os.fstat(descriptor).st_size
            if size <= MOST_BYTES:
                continue
            if sys.platform == "win32":  # nothing is known about descriptors there
                raise NotImplementedError
            tail = os.pread(descriptor, KEPT_BYTES, size - KEPT_BYTES)
            self._left_out[descriptor] += size - 2 * KEPT_BYTES
            os.ftruncate(descriptor, KEPT_BYTES)
            os.lseek(descriptor, KEPT_BYTES, os.SEEK_SET)  # all writers of the file share one position
            note = f"\n[... {self._left_out[descriptor]:,} bytes left out by rl-stability ...]\n"
            os.write(descriptor, note.encode() + tail)

"""One leak check: how many laps to run next, what was measured, and when to stop."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_rlstability.leaks.foreign import rule_out_others
from pytest_rlstability.leaks.known_leaks import Keepings, KnownLeak
from pytest_rlstability.leaks.settings import LeakSettings
from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.leaks.watched import Watched, what_is_open
from pytest_rlstability.model.series import CAPACITY, Series
from pytest_rlstability.model.thinning import Thinning
from pytest_rlstability.model.verdict import Section, Verdict
from pytest_rlstability.osinfo.memory import memory_room
from pytest_rlstability.verdicts.leak import FEWEST_SAMPLES, Evidence, LeakState, Rule, judge

SAMPLING_SHARE, WHOLE_SHARE = 0.05, 0.2
"""The share of the time that samples take; the second if each needs a collection of all objects."""
MEASURING_SHARE = 0.75
"""The rest of the budget is for finding the holder of what leaked."""
EXPENSIVE_SHARE = 0.01
GARBAGE_SHARE = 0.1
"""Less garbage than this share of the growth is not worth a correction, and less beside it is not growth."""
QUICK_LAPS = 480
LOOK = 1.5
MOST_SAMPLES = 32
"""While laps are measured, ``LOOK`` seconds of them get about this many samples, if sampling is cheap enough."""
FINEST = CAPACITY // 2
"""No more samples than this in all laps so far, because a full series drops samples of its beginning."""
Emit = Callable[[Mapping[str, object]], None]


class LeakCheck:
    """Runs one check. The caller runs the laps that ``windows()`` asks for and reads ``watched`` afterwards.

    ``for count in check.windows(): [lap() for _ in range(count)]``, then ``check.leaks()`` and ``check.close()``.
    """

    def __init__(
        self,
        settings: LeakSettings,
        *,
        emit: Emit | None = None,
        extra: Sequence[Watched] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.settings = settings
        self.laps = 0
        self.measured_from = 0
        self.lap_seconds = 0.0
        self.measured_seconds = 0.0
        self.watched: list[Watched] = []
        self.missing: dict[str, str] = {}
        self.known_leaks: list[KnownLeak] = []
        self.verdict: Verdict | None = None
        self.warning = ""
        self.unjudged = ""
        """Why there is no judgement, if there is none."""
        self._signals: list[Signal] = []
        self._charted: list[Signal] = []
        self._charted_at_end: dict[str, float] = {}
        self._sampled_at = 0.0
        self._extra = extra
        self._emit = emit
        self._thinning = Thinning()
        self._clock = clock
        self.quickest_lap = math.inf
        self._lap_cost = 0.0
        self._sample_cost = 0.0
        self._expensive_cost = 0.0
        self._expensive_at = 0.0
        self._whole_cost = 0.0
        self._garbage_looked_for = 0
        self._drops_frozen = False
        """Whether the test drops cycles that were there before: nothing stays frozen then."""
        self._opened_at = 0.0
        self._budget_from = 0.0
        """The budget is for measuring: what the first laps import and build does not use it up."""
        self._open = False

    def windows(self) -> Iterator[int]:
        """Numbers of laps to run, one after the other, until there is a verdict or the time is up."""
        self._begin()
        while not self._is_warm():
            yield from self.run_laps(self._next_window(self.settings.warmup, self.laps))
        self._begin_measuring()
        yield from self._measure()
        self._charted_at_end = self._read_charted()

    def leaks(self) -> list[Watched]:
        """What leaks, the clearest first."""
        return [watched for watched in self.watched if watched.judgement.state == LeakState.LEAK]

    def undecided(self) -> list[Watched]:
        """What grows in a way that could not be decided; without signals that are read rarely or shared with others."""
        undecided = [watched for watched in self.watched if watched.judgement.state == LeakState.UNDECIDED]
        return [watched for watched in undecided if not (watched.signal.expensive or watched.signal.foreign)]

    @property
    def measured_laps(self) -> int:
        return self.laps - self.measured_from

    @property
    def elapsed(self) -> float:
        return self._clock() - self._opened_at

    @property
    def seconds_left(self) -> float:
        return self.settings.budget - (self._clock() - self._budget_from)

    @property
    def seconds_per_lap(self) -> float:
        return max(self.lap_seconds / max(self.laps, 1), 1e-7)

    def settle(self, *, whole: bool = False) -> None:
        """Drop what pytest keeps of the laps, and collect garbage; with *whole* also among what was frozen. If the test
        has switched the collector off, nobody collects its garbage, and that is a leak of the test."""
        self._keepings.trim()
        whole = whole or self._drops_frozen
        if whole:
            gc.unfreeze()
        if gc.isenabled():
            gc.collect()
        if whole:
            gc.freeze()

    def read(self, watched: Sequence[Watched]) -> list[float]:
        """The values of *watched* now, without what libraries and pytest are known to keep."""
        self.settle()
        return [entry.signal.read() - self._known(entry.signal.name) for entry in watched]

    def allows(self, container: object) -> bool:
        """Whether pytest or a library is known to keep things in *container*."""
        return self._keepings.keeps(container) or any(known.keeps(container) for known in self.known_leaks)

    def sections(self) -> list[Section]:
        """Sections for the report, besides the signals."""
        return []

    def _begin(self) -> None:
        self._open, self._opened_at = True, self._clock()
        self._budget_from = self._opened_at
        self._signals, self.missing = self.settings.catalog.open(self.settings.signals)
        self._charted = [signal for signal in self._signals if not signal.judged]
        self.watched = list(self._extra)
        self.watched += [Watched(signal, self._rule(signal)) for signal in self._signals if signal.judged]
        self._freeze()
        self._sample()

    def _freeze(self) -> None:
        """From here on a collection visits new objects only, which takes a hundredth of the time. What pytest keeps
        from here on is dropped."""
        gc.unfreeze()
        for known in self.known_leaks:
            known.close()
        self.known_leaks = self.settings.open_known_leaks()
        self._keepings = Keepings()
        started = self._clock()
        gc.collect()
        self._whole_cost = self._clock() - started
        gc.freeze()

    def close(self) -> None:
        """Release everything; may be called twice."""
        if self._open:
            self._open = False
            self._keepings.trim()
            gc.unfreeze()
            self._emit_judgements()
            for signal in self._signals:
                signal.close()
            for known in self.known_leaks:
                known.close()

    def judge_now(self, final: bool) -> None:
        """Bring every judgement up to date with the samples."""
        self._judge(final)
        suspects = [entry for entry in self.watched if entry.signal.collected and entry.judgement.growing]
        if any(entry.judgement.state == LeakState.LEAK or final for entry in suspects) or (
            suspects and self._can_look_for_garbage()
        ):
            self._discount_garbage(suspects)
            self._judge(final)

    def _can_look_for_garbage(self) -> bool:
        """Whether the laps have doubled since the last look, and it takes a small share of their time."""
        doubled = self.measured_laps >= 2 * self._garbage_looked_for
        return doubled and self._whole_cost <= SAMPLING_SHARE * self.measured_seconds

    def _discount_garbage(self, suspects: Sequence[Watched]) -> None:
        """Cycles among the frozen objects stay when the test drops them, and with them what they refer to, which is our
        doing. Collect them, take their share out of the samples, and keep nothing frozen from sample to sample."""
        self._garbage_looked_for = self.measured_laps
        before = self.read(suspects)
        self.settle(whole=True)
        after = self.read(suspects)
        for entry, frozen, left in zip(suspects, before, after, strict=True):
            grown = entry.series.growth
            kept = 1 - (frozen - left) / grown if grown > 0 else 1.0
            if kept < 1 - GARBAGE_SHARE:
                entry.series.scale_growth(kept if kept > GARBAGE_SHARE else 0.0)
                self._drops_frozen = True

    def _judge(self, final: bool) -> None:
        evidence = Evidence(self.measured_laps, self.measured_seconds, self._time_to_measure(), final)
        for watched in self.watched:
            if not watched.dismissed:
                watched.judgement = judge(watched.series.laps, watched.series.values, watched.rule, evidence)
        if self.leaks():  # the check ends here, and a thread in every lap says more than its memory
            evidence = replace(evidence, final=True)
            for watched in self.watched:
                if watched.rule.exact and watched.judgement.steady:
                    watched.judgement = judge(watched.series.laps, watched.series.values, watched.rule, evidence)

    def judge_cut_short(self) -> None:
        """Judge the samples of a check that a lap ended; with those of the warm-up if there are few others."""
        for watched in self.watched:
            laps, values = watched.before
            if len(watched.series) < 2 * FEWEST_SAMPLES and laps:
                later = (laps[-1] + lap for lap in watched.series.laps)
                watched.series = Series.of([*laps, *later], [*values, *watched.series.values])
        self.judge_now(final=True)

    # the phases

    def _is_warm(self) -> bool:
        if self.settings.warmup is not None:
            return self.laps >= self.settings.warmup
        if any(watched.series.growth >= watched.rule.ceiling / 8 for watched in self.watched):
            return True
        if self.lap_seconds >= 0.1 * self.settings.budget and self.laps >= 2:
            return True
        return self.laps >= 16 and self.lap_seconds >= 0.15

    def _begin_measuring(self) -> None:
        self._freeze()
        for watched in self.watched:
            watched.before = (watched.series.laps, watched.series.values)
            watched.series.clear()
        self.measured_from = self.laps
        self.measured_seconds = 0.0
        self._expensive_cost = 0.0
        self._budget_from = self._clock()
        self._sample()

    @property
    def too_slow(self) -> bool:
        """Whether the budget is over before there can be a judgement."""
        return self.settings.laps is None and self.quickest_lap * FEWEST_SAMPLES > self._time_to_measure()

    def _measure(self) -> Iterator[int]:
        if self.too_slow:
            if not self.settings.sweep:
                return
            # what is counted without noise shows in a few laps
            self.watched = [entry for entry in self.watched if entry.signal.exact]
        next_look = FEWEST_SAMPLES
        while True:
            yield from self.run_laps(self._next_window(self.settings.laps, self.measured_laps))
            final = self._time_is_up() or (self.settings.laps is not None and self.measured_laps >= self.settings.laps)
            if not final and self.measured_laps < next_look:
                continue
            next_look = math.ceil(self.measured_laps * 1.15)
            self.judge_now(final)
            yield from rule_out_others(self)
            if final or self.leaks() or self._settled():
                return

    def _settled(self) -> bool:
        """Whether more laps change nothing. Signals that are read rarely count only if there are no others."""
        deciding = [watched for watched in self.watched if not watched.signal.expensive] or self.watched
        return not any(watched.unsettled for watched in deciding)

    def run_laps(self, count: int) -> Iterator[int]:
        """Asks for *count* laps, and takes a sample after them."""
        yield from self._count_laps(count)
        self._sample()

    def _count_laps(self, count: int) -> Iterator[int]:
        started = self._clock()
        yield count
        seconds = self._clock() - started
        self.laps += count
        self.lap_seconds += seconds
        self.measured_seconds += seconds
        self._lap_cost = seconds / count
        self.quickest_lap = min(self.quickest_lap, self._lap_cost)

    # how many laps until the next sample

    def _next_window(self, wanted: int | None, done: int) -> int:
        count = max(2, self.laps // 8) if self.laps > 1 else 1
        if self.measured_from and self._lap_cost:
            # evenly spaced samples show more, so the windows of a short check stay short
            count = min(count, max(math.ceil(LOOK / MOST_SAMPLES / self._lap_cost), self.measured_laps // MOST_SAMPLES))
        if self._lap_cost > 0:
            share = WHOLE_SHARE if self._drops_frozen else SAMPLING_SHARE
            count = min(count, math.ceil(self._sample_cost / (share * self._lap_cost)))
            count = max(count, self.measured_laps // FINEST)
            count = min(count, math.ceil(max(self._time_left(), 0.01) / self._lap_cost))
        if wanted is not None:
            count = min(count, wanted - done, max(wanted // MOST_SAMPLES, 1))
        return max(min(count, self._laps_to_ceiling()), 1)

    def _laps_to_ceiling(self) -> int:
        """A part of the laps until growth reaches its ceiling: a leak must not starve the machine."""
        laps = 1 << 30
        for watched in self.watched:
            growth, ceiling = watched.series.growth, watched.rule.ceiling
            if growth > 0 and not math.isinf(ceiling):
                while ceiling <= growth:
                    ceiling *= 2
                room = max((ceiling - growth) / 8, ceiling / 32)
                laps = min(laps, max(1, math.ceil(room * max(self.measured_laps, 1) / growth)))
        return laps

    def _time_to_measure(self) -> float:
        return MEASURING_SHARE * self.settings.budget

    def _time_left(self) -> float:
        return self._time_to_measure() - (self._clock() - self._budget_from)

    def _time_is_up(self) -> bool:
        if self._time_left() > 0:
            return False
        # a check with quick laps is not cut short because the machine held up one of them
        quick = self._lap_cost * QUICK_LAPS < 0.1 * self.settings.budget
        return not (quick and self.measured_laps < QUICK_LAPS)

    # samples

    def _sample(self) -> None:
        started = self._clock()
        cheap = [watched for watched in self.watched if not watched.signal.expensive]
        for watched, value in zip(cheap, self.read(cheap), strict=True):
            watched.series.add(self.measured_seconds / 60 if watched.by_minute else self.measured_laps, value)
        self._sample_expensive()
        self._sampled_at = started - self._opened_at
        self._emit_sample()
        cost = self._clock() - started
        self._sample_cost = cost if not self._sample_cost else 0.8 * self._sample_cost + 0.2 * cost

    def _known(self, name: str) -> float:
        """How much of the signal *name* is known to be kept by libraries and pytest."""
        if name == "python":
            return sum(known.blocks() for known in self.known_leaks)
        if name == "malloc":
            return self._keepings.heap_bytes() + sum(known.heap_bytes() for known in self.known_leaks)
        return 0.0

    def _sample_expensive(self) -> None:
        """Read the signals that take long, if that takes only a small share of the time of the laps since."""
        if self._expensive_cost > EXPENSIVE_SHARE * (self.lap_seconds - self._expensive_at):
            return
        started = self._clock()
        for watched in self.watched:
            if watched.signal.expensive:
                watched.series.add(self.measured_laps, watched.signal.read())
        self._expensive_cost = self._clock() - started
        self._expensive_at = self.lap_seconds

    def _emit_sample(self) -> None:
        if self._emit is not None and self._thinning.keeps(self._sampled_at):
            self._emit(self._sample_record(self._read_charted()))

    def _read_charted(self) -> dict[str, float]:
        return {signal.name: signal.read() for signal in self._charted}

    def _sample_record(self, charted: Mapping[str, float]) -> dict[str, object]:
        """The last sample, with the values of the signals that are only *charted*."""
        values = {watched.signal.name: watched.series.last for watched in self.watched if len(watched.series)}
        return {
            "lap": self.laps,
            "warmup": self.measured_from,
            "seconds": round(self._sampled_at, 3),
            "cpu_seconds": round(time.process_time(), 3),
            "values": {**values, **charted},
            "waits_for": what_is_open(self.watched) if self.measured_from else "the first laps, to warm up",
        }

    def _emit_judgements(self) -> None:
        """Emit each slope that was found and each limit that was promised, with the last sample: a quick check may have
        sent no other since its first."""
        if self._emit is None:
            return
        unread = {name: f"not measured: {reason}" for name, reason in self.missing.items()}
        if self.unjudged:
            unread[""] = self.unjudged
        judged = [entry.record() for entry in self.watched if entry.is_worth_a_record]
        judged += [{"signal": name, "state": LeakState.NOT_JUDGED, "reason": why} for name, why in unread.items()]
        self._emit({**self._sample_record(self._charted_at_end), "judged": judged})

    def _rule(self, signal: Signal) -> Rule:
        limit = self.settings.limit_of(signal.unit)
        spare = max(memory_room(self.settings.memory_limit) / 4, 2.0**24)
        ceiling = min(signal.ceiling, spare) if signal.unit == "bytes" else signal.ceiling
        return Rule(limit, signal.smallest, signal.resolution, ceiling, signal.exact)

"""One leak check: how many laps to run next, what was measured, and when it is enough."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_rlstability.events import Section
from pytest_rlstability.leaks.allowances import Allowance, open_allowances
from pytest_rlstability.leaks.harness import Keepings
from pytest_rlstability.leaks.series import CAPACITY, Series
from pytest_rlstability.leaks.settings import LeakSettings
from pytest_rlstability.signals.protocol import Signal
from pytest_rlstability.signals.registry import open_signals
from pytest_rlstability.verdicts.leak import FEWEST_SAMPLES, Evidence, Judgement, Rule, judge

SAMPLING_SHARE = 0.05
MEASURING_SHARE = 0.75
"""The rest of the budget is for finding out who holds what leaked."""
DEAR_SHARE = 0.01
QUICK_LAPS = 480
LOOK = 1.5
MOST_SAMPLES = 32
"""A look of so many seconds is sampled at least so often, whatever a sample costs."""
FINEST = CAPACITY // 2
"""No more samples than this in all laps so far: a full series thins out its beginning."""
Teller = Callable[[Mapping[str, object]], None]


@dataclass
class Watched:
    """A signal under watch: its samples and what they say so far."""

    signal: Signal
    rule: Rule
    series: Series = field(default_factory=Series)
    judgement: Judgement = field(default_factory=lambda: Judgement("clean", False))
    before: tuple[Sequence[float], Sequence[float]] = ((), ())
    """The samples of the warm-up, for a check that does not get much further."""
    by_minute: bool = False
    """Judged by time instead of laps."""
    dismissed: str = ""

    @property
    def unsettled(self) -> bool:
        """Whether more laps would tell more. Not where other processes move it to and fro."""
        stirred = self.signal.foreign and len(self.series) >= 4 * FEWEST_SAMPLES and not self.judgement.steady
        return not self.judgement.settled and not (stirred and self.judgement.state == "undecided")


class LeakCheck:
    """Runs one check. The caller runs the laps that ``windows()`` asks for and reads ``watched`` afterwards.

    ``for count in check.windows(): [lap() for _ in range(count)]``, then ``check.leaks()`` and ``check.close()``.
    """

    def __init__(
        self,
        settings: LeakSettings,
        *,
        tell: Teller | None = None,
        extra: Sequence[Watched] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.settings = settings
        self.laps = 0
        self.measured_from = 0
        self.lap_seconds = 0.0
        self.measured_seconds = 0.0
        self.sampling_seconds = 0.0
        self.watched: list[Watched] = []
        self.missing: dict[str, str] = {}
        self.allowances: list[Allowance] = []
        self._charted: list[Signal] = []
        self._extra = extra
        self._tell = tell
        self._told_at = 0.0
        self._clock = clock
        self._lap_cost = 0.0
        self._sample_cost = 0.0
        self._dear_cost = 0.0
        self._dear_at = 0.0
        self._opened_at = 0.0
        self._open = False

    # what the caller sees

    def windows(self) -> Iterator[int]:
        """Numbers of laps to run, one after the other, until there is a verdict or no time."""
        self.open()
        yield from self._warm_up()
        self._begin_measuring()
        yield from self._measure()

    def leaks(self) -> list[Watched]:
        """What leaks, most telling first."""
        return [watched for watched in self.watched if watched.judgement.state == "leak"]

    def undecided(self) -> list[Watched]:
        """What grows in a way that could not be decided; never what is only read rarely or moved by others."""
        return [
            watched
            for watched in self.watched
            if watched.judgement.state == "undecided" and not (watched.signal.dear or watched.signal.foreign)
        ]

    @property
    def measured_laps(self) -> int:
        return self.laps - self.measured_from

    @property
    def seconds_left(self) -> float:
        return self.settings.budget - (self._clock() - self._opened_at)

    @property
    def seconds_per_lap(self) -> float:
        return max(self.lap_seconds / max(self.laps, 1), 1e-7)

    def read(self, watched: Sequence[Watched]) -> list[float]:
        """What *watched* stand at now, without a sample being made of it."""
        self._keepings.trim()
        gc.collect()
        return [entry.signal.read() - self._known(entry.signal.name) for entry in watched]

    def sections(self) -> list[Section]:
        """What its report says beyond the signals."""
        return []

    def open(self) -> None:
        if self._open:
            return
        self._open = True
        self._opened_at = self._clock()
        signals, self.missing = open_signals(self.settings.signals)
        self._charted = [signal for signal in signals if not signal.judged]
        self.watched = list(self._extra)
        self.watched += [Watched(signal, self._rule(signal)) for signal in signals if signal.judged]
        self._keepings = Keepings()
        gc.collect()
        gc.freeze()
        self._sample()

    def close(self) -> None:
        """Give everything back; harmless when repeated."""
        if self._open:
            self._open = False
            gc.unfreeze()
            self._tell_judgements()
            for allowance in self.allowances:
                allowance.close()
            for signal in [*(watched.signal for watched in self.watched), *self._charted]:
                signal.close()

    def judge_now(self, final: bool) -> None:
        """Bring every judgement up to date with the samples."""
        evidence = Evidence(
            laps=self.measured_laps, seconds=self.measured_seconds, budget=self._time_to_measure(), final=final
        )
        for watched in self.watched:
            if not watched.dismissed:
                watched.judgement = judge(watched.series.laps, watched.series.values, watched.rule, evidence)

    def judge_cut_short(self) -> None:
        """Judge what there is when a lap ended the check: with the warm-up's samples if that is nearly all."""
        for watched in self.watched:
            laps, values = watched.before
            if len(watched.series) < 2 * FEWEST_SAMPLES and laps:
                began = laps[-1]
                watched.series = Series.of(
                    [*laps, *(began + lap for lap in watched.series.laps)], [*values, *watched.series.values]
                )
        self.judge_now(final=True)

    # the phases

    def _warm_up(self) -> Iterator[int]:
        while not self._warm():
            wanted = self.settings.warmup
            yield from self._run(self._next_window(wanted - self.laps if wanted is not None else None))

    def _warm(self) -> bool:
        if self.settings.warmup is not None:
            return self.laps >= self.settings.warmup
        if any(watched.series.growth >= watched.rule.ceiling / 8 for watched in self.watched):
            return True
        if self.lap_seconds >= 0.1 * self.settings.budget and self.laps >= 2:
            return True
        return self.laps >= 16 and self.lap_seconds >= 0.15

    def _begin_measuring(self) -> None:
        gc.unfreeze()
        self.allowances = open_allowances()
        gc.collect()
        gc.freeze()
        for watched in self.watched:
            watched.before = (watched.series.laps, watched.series.values)
            watched.series.clear()
        self.measured_from = self.laps
        self.measured_seconds = 0.0
        self._dear_cost = 0.0
        self._sample()

    def _measure(self) -> Iterator[int]:
        next_look = FEWEST_SAMPLES
        while True:
            laps_left = self.settings.laps - self.measured_laps if self.settings.laps is not None else None
            yield from self._run(self._next_window(laps_left))
            final = self._time_is_up() or (self.settings.laps is not None and self.measured_laps >= self.settings.laps)
            if not final and self.measured_laps < next_look:
                continue
            next_look = math.ceil(self.measured_laps * 1.15)
            self.judge_now(final)
            yield from self._rule_out_others()
            if final or self.leaks() or self._settled():
                return

    def _settled(self) -> bool:
        """Whether there is nothing to wait for. What is read rarely only convicts, unless it is all there is."""
        deciding = [watched for watched in self.watched if not watched.signal.dear] or self.watched
        return not any(watched.unsettled for watched in deciding)

    def _run(self, count: int) -> Iterator[int]:
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

    # how many laps until the next sample

    def _next_window(self, laps_left: int | None) -> int:
        count = max(2, self.laps // 8) if self.laps > 1 else 1
        if self.measured_from and self._lap_cost:
            # evenly spaced samples tell more, so the windows of a short look stay short
            count = min(count, max(math.ceil(LOOK / MOST_SAMPLES / self._lap_cost), self.measured_laps // MOST_SAMPLES))
        if self._lap_cost > 0:
            count = min(count, math.ceil(self._sample_cost / (SAMPLING_SHARE * self._lap_cost)))
            count = max(count, self.measured_laps // FINEST)
            count = min(count, math.ceil(max(self._time_left(), 0.01) / self._lap_cost))
        for watched in self.watched:
            count = min(count, self._laps_to_ceiling(watched))
        if laps_left is not None:
            count = min(count, laps_left)
        return max(count, 1)

    def _laps_to_ceiling(self, watched: Watched) -> int:
        """A part of the laps that growth would take to its ceiling: a leak must not starve the machine."""
        growth, done = watched.series.growth, max(self.measured_laps, 1)
        if growth <= 0 or math.isinf(watched.rule.ceiling):
            return 1 << 30
        ceiling = watched.rule.ceiling
        while ceiling <= growth:
            ceiling *= 2
        room = max((ceiling - growth) / 8, ceiling / 32)
        return max(1, math.ceil(room * done / growth))

    def _time_to_measure(self) -> float:
        return MEASURING_SHARE * self.settings.budget

    def _time_left(self) -> float:
        return self._time_to_measure() - (self._clock() - self._opened_at)

    def _time_is_up(self) -> bool:
        if self._time_left() > 0:
            return False
        # one lap that the machine held up must not cost a check that is otherwise done in a moment
        quick = self._lap_cost * QUICK_LAPS < 0.1 * self.settings.budget
        return not (quick and self.measured_laps < QUICK_LAPS)

    # samples

    def _sample(self) -> None:
        started = self._clock()
        self._keepings.trim()
        gc.collect()
        for watched in self.watched:
            if not watched.signal.dear:
                moment = self.measured_seconds / 60 if watched.by_minute else self.measured_laps
                watched.series.add(moment, watched.signal.read() - self._known(watched.signal.name))
        self._sample_dear()
        self._tell_some(started)
        cost = self._clock() - started
        self.sampling_seconds += cost
        self._sample_cost = cost if not self._sample_cost else 0.8 * self._sample_cost + 0.2 * cost

    def _known(self, name: str) -> float:
        """What libraries and pytest are known to have kept by now, in the unit of the signal *name*."""
        if name == "python":
            return sum(allowance.blocks() for allowance in self.allowances)
        if name == "malloc":
            return self._keepings.heap_bytes() + sum(allowance.heap_bytes() for allowance in self.allowances)
        return 0.0

    def _sample_dear(self) -> None:
        """Read the signals that take long only when laps have taken so much longer that it does not matter."""
        if self._dear_cost > DEAR_SHARE * (self.lap_seconds - self._dear_at):
            return
        started = self._clock()
        for watched in self.watched:
            if watched.signal.dear:
                watched.series.add(self.measured_laps, watched.signal.read())
        self._dear_cost = self._clock() - started
        self._dear_at = self.lap_seconds

    def _tell_some(self, now: float) -> None:
        elapsed = now - self._opened_at
        if self._tell is not None and now - self._told_at >= self._pause_in_telling(elapsed):
            self._told_at = now
            values = {watched.signal.name: watched.series.last for watched in self.watched if len(watched.series)}
            values.update({signal.name: signal.read() for signal in self._charted})
            self._tell(self._sample_record(elapsed, values))

    def _pause_in_telling(self, elapsed: float) -> float:
        """Samples are told ever more rarely: tens to a few hundreds in a check, however many are taken."""
        return max(0.02, elapsed / 50)

    def _sample_record(self, elapsed: float, values: Mapping[str, float]) -> dict[str, object]:
        return {
            "lap": self.laps,
            "warmup": self.measured_from,
            "seconds": round(elapsed, 3),
            "cpu_seconds": round(time.process_time(), 3),
            "values": values,
        }

    def _tell_judgements(self) -> None:
        """Tell what the samples came to: each slope that was found and each limit that was promised."""
        if self._tell is None:
            return
        judged = [
            {
                "signal": watched.signal.name,
                "state": watched.judgement.state,
                "reason": watched.judgement.reason,
                "slope": watched.judgement.per_lap,
                "slope_limit": watched.rule.limit if math.isfinite(watched.rule.limit) else None,
                "per": "minute" if watched.by_minute else "lap",
                "most": watched.signal.most,
            }
            for watched in self.watched
            if watched.judgement.per_lap or watched.rule.limit or watched.signal.most is not None
        ]
        self._tell({**self._sample_record(self._clock() - self._opened_at, {}), "judged": judged})

    def _rule(self, signal: Signal) -> Rule:
        ceiling = signal.ceiling
        if signal.unit == "bytes":
            ceiling = min(ceiling, _memory_to_spare())
        return Rule(
            limit=self.settings.limit_of(signal.name, signal.unit),
            smallest=signal.smallest,
            resolution=signal.resolution,
            ceiling=ceiling,
            exact=signal.exact,
        )

    # what other processes do

    def _rule_out_others(self) -> Iterator[int]:
        """Convict what other processes share only if it stands still when the test does, and goes on with it."""
        for watched in self.leaks():
            if watched.signal.foreign and not (yield from self._is_ours(watched)):
                watched.dismissed = "other processes make it grow"
                watched.judgement = Judgement("clean", True, reason=watched.dismissed)

    def _is_ours(self, watched: Watched) -> Generator[int, None, bool]:
        rate = watched.series.growth / max(self.measured_seconds, 1e-6)
        pause = min(max(0.3, 6 / rate), 3.0)
        before = watched.signal.read()
        time.sleep(pause)
        if watched.signal.read() - before > 0.25 * rate * pause:
            return False
        before, laps = watched.signal.read(), max(8, self.measured_laps // 8)
        yield from self._run(laps)
        return watched.signal.read() - before >= 0.5 * watched.judgement.per_lap * laps


def _memory_to_spare() -> float:
    """A quarter of the memory that this process may still take."""
    import psutil

    spare = float(psutil.virtual_memory().available)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            spare = min(spare, limit - psutil.Process().memory_info().vms)
    return max(spare / 4, 2.0**24)

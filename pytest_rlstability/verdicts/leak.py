"""Growth that persists: a pure function from samples to clean, bounded, undecided or leak.

The samples of one signal are pairs (lap, value). The judge looks at the *lower envelope*, the lowest value in each
of twelve equal stretches of laps, so that spikes and the teeth of a sawtooth do not count. A leak is an envelope
that rises in every newer stretch, at a rate that is not clearly below that of the older stretches, at two horizons.
The growth of a cache that fills, an optimiser's first step or a late import slows down.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from pytest_rlstability.model.growth import concordance, slope

STRETCHES = 12
FEWEST_SAMPLES = STRETCHES
SLOPE_KEPT = 0.8
"""A newer rate below this share of the older one is growth that slows down."""
SLOPE_LOST = 0.6
"""Below this share it is growth that comes to an end, like that of a logarithm, a square root or a cache."""
CONFIRMING_SHARE = 2 / 3
"""A leak must also look like one at this share of the horizon. Noise rarely does at both."""
SLOPE_STRAIGHT, STRAIGHT = 0.92, 4.0
"""Newer growth that keeps this share of its rate and is this even has not slowed down. A square root keeps 0.84."""
FINE = 0.1
"""The share of the resolution that is looked for when laps are cheap, so that laps of one step show what leaks per
episode."""
UNHURRIED = 1.5
"""Seconds after which the plain resolution is enough."""
FEW_LAPS, MANY_LAPS = 2400, 12_000
"""Growth over the first many laps may be a buffer that fills; over the second, only a large buffer."""
EXACT_LAPS = 768
"""Laps for a signal without noise: a pool of a few hundred connections or threads is full by then."""
HALF_TIME = 0.5
"""The share of the time that a buffer gets to fill up, where laps are too slow for so many."""
FLAT = "does not grow"
STOPPED = "grew and stopped"
WITHIN_LIMIT = "grows within its limit"
NO_LIMIT = "grows, and has no limit"
STEADY = "grows steadily, but has not been watched for long"
STEADINESS = 1.5
"""The mean of the rises must be this many times their standard deviation. For a random walk it is near 0."""


class LeakState(StrEnum):
    """What the samples of one signal show."""

    CLEAN = "clean"
    """It does not grow, or only within its limit."""
    NOT_JUDGED = "not judged"
    """It grows, and nobody said how much it may."""
    BOUNDED = "bounded"
    """It grew and stopped, or grows ever more slowly."""
    UNDECIDED = "undecided"
    """It grows, and the laps do not show whether that goes on."""
    LEAK = "leak"


@dataclass(frozen=True)
class Rule:
    """What growth of one signal means.

    ``Rule(limit=0, smallest=4096, resolution=64)``: growth of at most *limit* per lap is allowed; a total below
    *smallest* is never a leak; an envelope that may hide less than *resolution* per lap is flat enough to stop.
    *exact* signals (descriptors, threads, processes) have no noise and are decided within hundreds of laps; steady
    growth of *ceiling* is a leak at once. What is not *judged* has no limit.
    """

    limit: float = 0.0
    smallest: float = 24.0
    resolution: float = 0.1
    ceiling: float = float("inf")
    exact: bool = False
    judged: bool = True


@dataclass(frozen=True)
class Evidence:
    """How much was measured: laps and seconds, the seconds there are in all, and whether this is the end."""

    laps: float
    seconds: float
    budget: float
    final: bool = False

    @property
    def spent(self) -> float:
        return self.seconds / self.budget if self.budget > 0 else 1.0


@dataclass(frozen=True)
class Judgement:
    """What one signal did. *settled*: more laps would not change it. *laps_wanted*: so many laps would decide it."""

    state: LeakState
    settled: bool
    per_lap: float = 0.0
    laps: int = 0
    laps_wanted: int = 0
    reason: str = ""

    @property
    def growing(self) -> bool:
        return self.state in (LeakState.LEAK, LeakState.UNDECIDED)

    @property
    def steady(self) -> bool:
        """Whether it rises like a leak, and was not watched for long enough to call it one."""
        return self.reason == STEADY


def judge(laps: Sequence[float], values: Sequence[float], rule: Rule, evidence: Evidence) -> Judgement:
    """What these samples say about one signal.

    >>> laps = list(range(0, 4000, 10))
    >>> judge(laps, [100 + 2 * lap for lap in laps], Rule(), Evidence(4000, 20, 30)).state.value
    'leak'
    >>> judge(laps, [100 + min(lap, 900) for lap in laps], Rule(), Evidence(4000, 20, 30)).state.value
    'bounded'
    """
    if len(values) < FEWEST_SAMPLES:
        return _too_few(laps, values, evidence)
    envelope = Envelope.of(laps, values)
    if envelope.growth >= rule.smallest and _leaks(laps, values, envelope):
        if envelope.per_lap <= rule.limit:
            return _within_limit(envelope, rule, evidence)
        if _ripe(envelope.growth, rule, evidence):
            return envelope.judgement(LeakState.LEAK, True, "grew in every stretch and did not slow down")
        return envelope.judgement(LeakState.UNDECIDED, False, STEADY, max(MANY_LAPS, 2 * evidence.laps))
    if _still_rising(envelope, rule):
        if 0 < envelope.per_lap <= rule.limit:
            return _within_limit(envelope, rule, evidence)
        if _slows_down(envelope):
            settled = evidence.final or (evidence.spent >= 0.5 and _long_enough(evidence))
            return envelope.judgement(LeakState.BOUNDED, settled, "grows ever more slowly")
        reason = "still grows, but not steadily"
        return envelope.judgement(LeakState.UNDECIDED, evidence.final, reason, 4 * evidence.laps)
    settled = evidence.final or (_long_enough(evidence) and _resolved(envelope, rule, evidence))
    # the newer half must lie above the beginning by clearly more than noise
    if min(envelope.newer) - envelope.lows[0] >= max(rule.smallest, 2 * envelope.newer_spread):
        return envelope.judgement(LeakState.BOUNDED, settled, STOPPED)
    return envelope.judgement(LeakState.CLEAN, settled, FLAT)


def _within_limit(envelope: Envelope, rule: Rule, evidence: Evidence) -> Judgement:
    state, reason = (LeakState.CLEAN, WITHIN_LIMIT) if rule.judged else (LeakState.NOT_JUDGED, NO_LIMIT)
    return envelope.judgement(state, _long_enough(evidence), reason)


@dataclass(frozen=True)
class Envelope:
    """The lowest value in each of ``STRETCHES`` equal stretches of laps."""

    lows: list[float]
    lap_span: float
    per_lap: float
    """Growth per lap over the newer half, so without the warm-up."""

    @classmethod
    def of(cls, laps: Sequence[float], values: Sequence[float]) -> Envelope:
        start, span = laps[0], (laps[-1] - laps[0]) or 1.0
        lows = [float("inf")] * STRETCHES
        for lap, value in zip(laps, values, strict=True):
            stretch = min(int((lap - start) * STRETCHES / span), STRETCHES - 1)
            if value < lows[stretch]:
                lows[stretch] = value
        newer = bisect_left(laps, (laps[0] + laps[-1]) / 2)
        return cls(_bridged(lows), span, slope(laps[newer:], values[newer:]))

    @property
    def rises(self) -> list[float]:
        return [after - before for before, after in pairwise(self.lows)]

    @property
    def halves(self) -> tuple[list[float], list[float]]:
        """The rises up to the newer half, and those within it."""
        return self.rises[: STRETCHES // 2 - 1], self.rises[STRETCHES // 2 - 1 :]

    @property
    def newer(self) -> list[float]:
        return self.lows[STRETCHES // 2 :]

    @property
    def newer_spread(self) -> float:
        return max(self.newer) - min(self.newer)

    @property
    def growth(self) -> float:
        return self.lows[-1] - self.lows[0]

    def judgement(self, state: LeakState, settled: bool, reason: str, laps_wanted: float = 0) -> Judgement:
        per_lap = 0.0 if reason in (FLAT, STOPPED) else self.per_lap
        return Judgement(state, settled, per_lap, int(self.lap_span), int(laps_wanted), reason)


def _bridged(lows: Sequence[float]) -> list[float]:
    """*lows* with a straight line across the stretches without a sample.

    >>> _bridged([1.0, float("inf"), float("inf"), 4.0])
    [1.0, 2.0, 3.0, 4.0]
    """
    known = [(position, low) for position, low in enumerate(lows) if low != float("inf")]
    filled = list(lows)
    for (left, low), (right, high) in pairwise(known):
        for position in range(left + 1, right):
            filled[position] = low + (high - low) * (position - left) / (right - left)
    return filled


def _leaks(laps: Sequence[float], values: Sequence[float], envelope: Envelope) -> bool:
    """Whether the envelope rises like a leak at this horizon and already did at a shorter one."""
    if not (_steady(envelope) or _staircase(laps, values)):
        return False
    shorter = bisect_right(laps, laps[0] + (laps[-1] - laps[0]) * CONFIRMING_SHARE)
    if shorter < FEWEST_SAMPLES:
        return True  # every lap is a stretch, and the rise in each of them is the confirmation
    earlier = Envelope.of(laps[:shorter], values[:shorter])
    return _steady(earlier) or _staircase(laps[:shorter], values[:shorter])


def _steady(envelope: Envelope) -> bool:
    older, newer = envelope.halves
    if min(newer) <= 0 or sum(older) <= 0:
        return False
    above = min(envelope.newer) > max(envelope.lows[: STRETCHES // 4])
    even = all(_trimmed_mean(rises) >= STEADINESS * _deviation(rises) for rises in (newer, envelope.rises))
    return above and even and _trimmed_mean(newer) >= SLOPE_KEPT * _trimmed_mean(older)


def _staircase(laps: Sequence[float], values: Sequence[float]) -> bool:
    """Whether it grows by ever larger steps at an even rate, as a vector that doubles: equal slopes at five halved
    horizons. Noise breaks the smaller horizons, so a signal that ever falls is not one."""
    if any(after < before for before, after in pairwise(values)):
        return False
    start, span = laps[0], laps[-1] - laps[0]
    horizons = [start + span / 2.0**halving for halving in range(6)]
    reached = [values[max(bisect_right(laps, lap) - 1, 0)] for lap in horizons]
    ends = zip(pairwise(horizons), pairwise(reached), strict=True)
    slopes = [(value - before) / (end - middle) for (end, middle), (value, before) in ends]
    return 0 < min(slopes) >= 0.45 * max(slopes)


def _still_rising(envelope: Envelope, rule: Rule) -> bool:
    """Whether the newer half trends upwards by more than the resolution."""
    newer = envelope.newer
    if newer[-1] <= newer[0] or envelope.newer_spread <= _hidden(envelope, rule) * FINE:
        return False
    return rule.exact or concordance(newer) >= 9


def _hidden(envelope: Envelope, rule: Rule) -> float:
    """How much a drift at the resolution rises over the newer half."""
    return rule.resolution * envelope.lap_span / 2


def _resolved(envelope: Envelope, rule: Rule, evidence: Evidence) -> bool:
    """Whether the noise is too small to hide a leak, or enough of the time has been spent on looking."""
    hidden = _hidden(envelope, rule)
    if envelope.newer_spread <= hidden * FINE or evidence.spent >= 1 / 3:
        return True
    return envelope.newer_spread <= hidden and evidence.seconds >= UNHURRIED


def _long_enough(evidence: Evidence) -> bool:
    """Whether the laps have shown what happens every tenth lap, and what a background thread does now and then."""
    if evidence.final:
        return True
    if evidence.seconds < min(0.4, evidence.budget / 4):
        return False
    return evidence.laps >= 240 or (evidence.spent >= 1 / 3 and evidence.laps >= 64) or evidence.spent >= 0.9


def _ripe(growth: float, rule: Rule, evidence: Evidence) -> bool:
    """Whether steady growth has gone on for so long that it is likelier a leak than a buffer that fills up."""
    if evidence.final or growth >= rule.ceiling:
        return True
    if rule.exact:
        return (evidence.laps >= EXACT_LAPS and growth >= 2 * rule.smallest) or evidence.spent >= 0.4
    if evidence.laps >= FEW_LAPS and evidence.seconds >= min(UNHURRIED, evidence.budget / 4):
        return evidence.laps >= MANY_LAPS or evidence.spent >= HALF_TIME
    return evidence.spent >= 0.65


def _slows_down(envelope: Envelope) -> bool:
    """Whether the rate has nearly halved as the horizon doubled: something fills up."""
    older, newer = envelope.halves
    return _trimmed_mean(newer) <= SLOPE_LOST * _trimmed_mean(older) and not _goes_on(newer)


def _goes_on(rises: Sequence[float]) -> bool:
    """Whether these rises lie on a straight line, as a leak does once a library has warmed up."""
    half = len(rises) // 2
    even = min(rises) > 0 and _trimmed_mean(rises) >= STRAIGHT * _deviation(rises)
    return even and sum(rises[half:]) >= SLOPE_STRAIGHT * sum(rises[:half])


def _too_few(laps: Sequence[float], values: Sequence[float], evidence: Evidence) -> Judgement:
    grown = values[-1] - values[0] if len(values) else 0.0
    done = int(laps[-1] - laps[0]) if len(laps) else 0
    return Judgement(
        LeakState.UNDECIDED if grown > 0 else LeakState.CLEAN,
        settled=evidence.final,
        per_lap=grown / done if done else 0.0,
        laps=done,
        laps_wanted=2 * FEWEST_SAMPLES,
        reason=f"only {done} laps were measured",
    )


def _trimmed_mean(numbers: Sequence[float]) -> float:
    """The mean without the highest and the lowest: a single late import is not a rate."""
    middle = sorted(numbers)[1:-1]
    return sum(middle) / len(middle)


def _deviation(numbers: Sequence[float]) -> float:
    middle = sorted(numbers)[:-1]  # the highest may be a late import
    mean = sum(middle) / len(middle)
    return float((sum((number - mean) ** 2 for number in middle) / len(middle)) ** 0.5)

"""A signal that a leak check judges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.model.series import Series
from pytest_rlstability.verdicts.leak import FEWEST_SAMPLES, Judgement, LeakState, Rule


@dataclass
class Watched:
    """A signal that is judged: its samples, and the judgement so far."""

    signal: Signal
    rule: Rule
    series: Series = field(default_factory=Series)
    judgement: Judgement = field(default_factory=lambda: Judgement(LeakState.CLEAN, False))
    before: tuple[Sequence[float], Sequence[float]] = ((), ())
    """The samples of the warm-up, for a check that ends soon after it."""
    by_minute: bool = False
    """Judged by time instead of laps."""
    dismissed: str = ""
    """Why its growth is not the test's, if it is not."""

    @property
    def per(self) -> str:
        return "minute" if self.by_minute else "lap"

    @property
    def unsettled(self) -> bool:
        """Whether more laps would decide it. They do not when other processes make it rise and fall."""
        stirred = self.signal.foreign and len(self.series) >= 4 * FEWEST_SAMPLES and not self.judgement.steady
        return not self.judgement.settled and not (stirred and self.judgement.state == LeakState.UNDECIDED)

    @property
    def is_worth_a_record(self) -> bool:
        return bool(self.judgement.per_lap or self.rule.limit or self.signal.most is not None)

    def record(self) -> dict[str, object]:
        """The slope that was found and the limit that was promised, for the event log."""
        return {
            "signal": self.signal.name,
            "state": self.judgement.state,
            "reason": self.judgement.reason,
            "slope": self.judgement.per_lap,
            "slope_limit": self.rule.limit if math.isfinite(self.rule.limit) else None,
            "per": self.per,
            "most": self.signal.most,
        }


def what_is_open(watched: Sequence[Watched]) -> str:
    """What keeps a check from ending now, for those who watch it."""
    waiting = [entry for entry in watched if entry.unsettled and not entry.signal.expensive]
    reasons = [f"{entry.signal.title}: {entry.judgement.reason or 'more laps'}" for entry in waiting[:2]]
    return "; ".join([*reasons, *([f"{len(waiting) - 2} more"] if waiting[2:] else [])]) or "the holder"

"""The levels of a counter: when a value crosses one, what a clean-up freed, and how long that lasted.

Pure: values and moments in, crossings out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_rlstability.model.growth import slope
from pytest_rlstability.model.series import Series

WARNING, CRITICAL, GROWTH, RECOVERED = "warning", "critical", "growth", "recovered"
_RANKS = ("", WARNING, CRITICAL)
_FEWEST_SECONDS = 20.0
"""Growth per minute is judged from so many seconds on."""


@dataclass(frozen=True)
class Crossing:
    """A value has crossed a level. *freed* is what the clean-up took away, if there was one."""

    probe: str
    level: str
    value: float
    limit: float
    text: str
    freed: float | None = None

    @property
    def worked(self) -> bool:
        """Whether the clean-up, if there was one, brought the value below the level."""
        return self.freed is None or self.value - self.freed < self.limit


class Levels:
    """``note(value, seconds)`` after each reading: the levels that were crossed. Each is told once, and again after the
    value was below it.

    >>> levels = Levels("food", warning=50, critical=80)
    >>> [crossing.level for value in (10, 60, 70, 90, 95, 20, 85) for crossing in levels.note(value, 0.0)]
    ['warning', 'critical', 'recovered', 'critical']
    """

    def __init__(
        self,
        name: str,
        *,
        warning: float | None = None,
        critical: float | None = None,
        per_minute: float | None = None,
        clean_up: Callable[[], float] | None = None,
    ) -> None:
        if warning is not None and critical is not None and warning > critical:
            raise ValueError(f"probe {name!r}: the warning level {warning:g} is above the critical level {critical:g}")
        self._name = name
        self._warning, self._critical, self._per_minute = warning, critical, per_minute
        self._clean_up = clean_up
        """Cleans up, and gives the value after that."""
        self._level = ""
        self._cleaned_at: float | None = None
        self._grows = False
        self._course = Series(128)

    def note(self, value: float, seconds: float) -> list[Crossing]:
        self._course.add(seconds, value)
        return [*self._crossed(value, seconds), *self._growth(value)]

    def _crossed(self, value: float, seconds: float) -> list[Crossing]:
        before, self._level = self._level, self._level_of(value)
        rises = _RANKS.index(self._level) > _RANKS.index(before)
        if rises and self._level == CRITICAL and self._critical is not None:
            return [self._critical_reached(value, seconds, self._critical)]
        if rises and self._warning is not None:
            text = f"{self._name} reached {value:g} (warning level {self._warning:g})"
            return [Crossing(self._name, WARNING, value, self._warning, text)]
        if before and not self._level:
            return [Crossing(self._name, RECOVERED, value, 0.0, f"{self._name} is back at {value:g}")]
        return []

    def _level_of(self, value: float) -> str:
        if self._critical is not None and value >= self._critical:
            return CRITICAL
        return WARNING if self._warning is not None and value >= self._warning else ""

    def _critical_reached(self, value: float, seconds: float, limit: float) -> Crossing:
        text = f"{self._name} reached {value:g} (critical level {limit:g})"
        if self._cleaned_at is not None:
            text += f", {seconds - self._cleaned_at:.3g} s after the last clean-up"
        if self._clean_up is None:
            return Crossing(self._name, CRITICAL, value, limit, text)
        after = self._clean_up()
        self._cleaned_at, self._level = seconds, self._level_of(after)
        text += f"; the clean-up took it to {after:g}"
        return Crossing(self._name, CRITICAL, value, limit, text, freed=value - after)

    def _growth(self, value: float) -> list[Crossing]:
        allowed, moments = self._per_minute, self._course.laps
        if allowed is None or len(moments) < 3 or moments[-1] - moments[0] < _FEWEST_SECONDS:
            return []
        rate = 60 * slope(moments, self._course.values)
        before, self._grows = self._grows, rate > allowed
        if before or not self._grows:
            return []
        text = f"{self._name} grows by {rate:.3g} per minute (limit {allowed:g})"
        return [Crossing(self._name, GROWTH, value, allowed, text)]

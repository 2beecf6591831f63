"""What the ``rl_locks`` fixture gives to a test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

from pytest_rlstability.child.locks.patch import install
from pytest_rlstability.child.locks.registry import Place, Registry
from pytest_rlstability.model.units import format_duration, parse_duration

USER = "rl_locks"


def track_locks() -> Registry:
    """Track new locks for ``rl_locks``."""
    return install(USER)


@dataclass(frozen=True)
class LockReport:
    """One line of code that makes locks, and how many seconds threads waited for them. ``contended`` counts the waits;
    acquisitions that did not wait are not in the percentiles."""

    name: str
    kind: str
    site: str
    contended: int
    p50: float
    p99: float
    longest: float
    worst: str

    def __str__(self) -> str:
        if not self.contended:
            return f"{self.name} ({self.kind}, {self.site}): no waits"
        values = {"p50": self.p50, "p99": self.p99, "max": self.longest}
        times = ", ".join(f"{name} {format_duration(value)}" for name, value in values.items())
        return f"{self.name} ({self.kind}, {self.site}): {self.contended} waits, {times} ({self.worst})"


class LockWatch:
    """The locks made since the fixture began: ``rl_locks.assert_max_wait("frame_lock", "5 ms")``; ``print(rl_locks)``
    shows how long threads waited for them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._taken = 0
        self.is_strict = False

    def strict(self) -> None:
        """Make lock order inversions fail the test instead of warning."""
        self.is_strict = True

    @property
    def inversions(self) -> list[str]:
        """The lock orders that can deadlock, each as text."""
        return list(self._registry.inversions.values())

    def take_inversions(self) -> list[str]:
        """The inversions since the last call."""
        found = self.inversions[self._taken :]
        self._taken += len(found)
        return found

    def report(self, name: str | None = None) -> list[LockReport]:
        """How long threads waited, by the line that made the lock, the longest wait first."""
        places = list(self._registry.places.values()) if name is None else self._named(name)
        reports = [self._report(place) for place in places if place.kind not in ("Thread", "Thread.join")]
        return sorted(reports, key=lambda report: -report.longest)

    def assert_max_wait(self, name: str, limit: str | float) -> None:
        """Fail when a thread waited, or has been waiting, longer than *limit* for a lock of that name."""
        __tracebackhide__ = True
        seconds = parse_duration(limit)
        worst = self.report(name)[0]
        if worst.longest > seconds:
            raise AssertionError(f"over the limit of {format_duration(seconds)}: {worst}")

    def __str__(self) -> str:
        return "\n".join(str(report) for report in self.report()) or "no locks were made"

    def _named(self, name: str) -> list[Place]:
        places = [place for place in self._registry.places.values() if place.name == name]
        if not places:
            known = sorted({place.name for place in self._registry.places.values()})
            raise LookupError(f"no lock named {name!r} was made under rl_locks; known: {', '.join(known) or 'none'}")
        return places

    def _report(self, place: Place) -> LockReport:
        waits = place.waits
        now = max(self._waiting_now(place), default=0.0)
        return LockReport(
            name=place.name,
            kind=place.kind,
            site=place.text,
            contended=waits.count + (now > 0),
            p50=waits.percentile(50) or now,
            p99=waits.percentile(99) or now,
            longest=max(waits.longest, now),
            worst=place.worst if waits.longest >= now else "still waiting",
        )

    def _waiting_now(self, place: Place) -> Iterator[float]:
        for thread in list(self._registry.threads):
            waiting = thread.waiting
            if waiting is not None and waiting.lock.place is place:
                yield perf_counter() - waiting.since

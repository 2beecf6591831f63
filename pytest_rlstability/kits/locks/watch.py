"""What a test sees of its locks: the object behind the ``rl_locks`` fixture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

from pytest_rlstability.locks.book import Book, Place
from pytest_rlstability.locks.order import Inversion
from pytest_rlstability.units import format_duration, parse_duration


@dataclass(frozen=True)
class LockReport:
    """One line of code that makes locks, and how long threads waited for them, in seconds.

    ``contended`` counts the waits; the percentiles are over those, an acquisition that did not wait is not in them.
    """

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
            return f"{self.name} ({self.kind}, {self.site}): nobody waited"
        times = ", ".join(
            f"{word} {format_duration(value)}"
            for word, value in (("p50", self.p50), ("p99", self.p99), ("max", self.longest))
        )
        return f"{self.name} ({self.kind}, {self.site}): {self.contended} waits, {times} ({self.worst})"


class LockWatch:
    """The locks made since the fixture began.

    ``rl_locks.assert_max_wait("frame_lock", "5 ms")`` fails the test when a thread waited longer;
    ``rl_locks.strict()`` makes lock orders that can deadlock a failure instead of a warning;
    ``rl_locks.report()`` gives one ``LockReport`` a line that made locks, ``print(rl_locks)`` all of them as text;
    ``rl_locks.inversions`` are the lock orders that can deadlock, each with ``str()`` in words.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._told = 0
        self.is_strict = False

    def strict(self) -> None:
        """Fail the test for a lock order inversion, instead of warning of it."""
        self.is_strict = True

    @property
    def inversions(self) -> list[Inversion]:
        """The cycles in the order in which locks were taken."""
        return list(self._book.inversions.values())

    def take_inversions(self) -> list[Inversion]:
        """Those that were not taken yet."""
        found = self.inversions[self._told :]
        self._told += len(found)
        return found

    def report(self, name: str | None = None) -> list[LockReport]:
        """How long threads waited, by the line that made the lock, the longest wait first."""
        places = list(self._book.places.values()) if name is None else self._named(name)
        reports = [self._report(place) for place in places if place.kind not in ("Thread", "Thread.join")]
        return sorted(reports, key=lambda report: -report.longest)

    def assert_max_wait(self, name: str, limit: str | float) -> None:
        """Fail when a thread waited, or waits now, longer than *limit* for a lock of that name."""
        __tracebackhide__ = True
        seconds = parse_duration(limit)
        worst = self.report(name)[0]
        if worst.longest > seconds:
            raise AssertionError(f"over the limit of {format_duration(seconds)}: {worst}")

    def __str__(self) -> str:
        return "\n".join(str(report) for report in self.report()) or "no locks were made"

    def _named(self, name: str) -> list[Place]:
        places = [place for place in self._book.places.values() if place.name == name]
        if not places:
            known = sorted({place.name for place in self._book.places.values()})
            raise LookupError(
                f"no lock named {name!r} was made since rl_locks began; known: {', '.join(known) or 'none'}"
            )
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
        for thread in list(self._book.threads):
            waiting = thread.waiting
            if waiting is not None and waiting.lock.place is place:
                yield perf_counter() - waiting.since

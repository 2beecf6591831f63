"""The state of a run so far, from its events: what metrics show while the run lasts."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from pytest_rlstability.model.events import Event, Finished, Outcome, Sample, Session, Started
from pytest_rlstability.model.growth import Growth, growth
from pytest_rlstability.model.series import SampleTable
from pytest_rlstability.model.verdict import Word

MOST_TESTS = 250
"""Tests that are shown one by one, so that a run of 10,000 tests does not have 10,000 times as many time series."""
CAPACITY = 96
_PROCESSOR = "processor seconds"
"""The column of the test's processor time. It is a clock, not a signal."""


class History:
    """The samples of one test, in a bounded number of rows: ``history.handle(sample)``, ``history.growth("rss")``."""

    def __init__(self) -> None:
        self._table = SampleTable(CAPACITY)
        self._known: dict[str, Growth | None] = {}

    def handle(self, sample: Sample) -> None:
        """Take in a sample; if it has no clock of its own, the event's time counts."""
        seconds = sample.time if sample.seconds is None else sample.seconds
        cpu_seconds = {} if sample.cpu_seconds is None else {_PROCESSOR: sample.cpu_seconds}
        self._table.add(sample.lap, seconds, {**sample.values, **cpu_seconds})
        self._known.clear()

    def __len__(self) -> int:
        return len(self._table)

    @property
    def names(self) -> Sequence[str]:
        return [name for name in self._table.names if name != _PROCESSOR]

    @property
    def seconds(self) -> float:
        """The time from the first sample to the last."""
        return self._table.seconds[-1] - self._table.seconds[0] if len(self._table) else 0.0

    def lap_seconds(self) -> list[float]:
        """Seconds per lap, from each sample to the next. The first third, the warm-up, is left out."""
        return self._per_lap(self._table.seconds)

    def lap_cpu_seconds(self) -> list[float]:
        """As ``lap_seconds``, of processor time; empty where that was not sampled."""
        return [seconds for seconds in self._per_lap(self._table.column(_PROCESSOR)) if not math.isnan(seconds)]

    def _per_lap(self, clock: Sequence[float]) -> list[float]:
        moments = list(zip(self._table.laps, clock, strict=False))[len(self._table) // 3 :]
        return [
            (now - before) / (lap - lap_before)
            for (lap_before, before), (lap, now) in pairwise(moments)
            if lap > lap_before
        ]

    def growth(self, name: str) -> Growth | None:
        """How *name* grows, or ``None`` when too few samples have it."""
        if name not in self._known:
            rows = zip(self._table.laps, self._table.seconds, self._table.column(name), strict=False)
            points = [row for row in rows if not math.isnan(row[2])]
            self._known[name] = growth(*zip(*points, strict=True)) if points else None
        return self._known[name]


@dataclass
class TestState:
    """One test: what is known from its samples and its end."""

    __test__ = False

    name: str
    running: bool = True
    laps: int = 0
    values: Mapping[str, float] = field(default_factory=dict)
    history: History = field(default_factory=History)
    peak_memory: float = 0.0
    seconds: float | None = None
    failed: bool = False
    word: Word | None = None

    def add_sample(self, event: Sample) -> None:
        self.values = {**self.values, **event.values}
        self.laps = max(self.laps, event.lap)
        self.peak_memory = max(self.peak_memory, self.values.get("rss", 0.0))
        self.history.handle(event)

    def finish(self, event: Finished) -> None:
        self.running = False
        self.seconds = event.duration
        self.laps = max(self.laps, event.laps)
        self.peak_memory = event.peak_memory or self.peak_memory
        self.failed = event.failed
        self.word = event.verdict.word if event.verdict else None


class RunState:
    """Handles events and keeps the tests that are worth showing: those that run, have samples or failed.

    ``with state.reading() as tests: ...`` holds events back for as long as it takes to read a consistent state.
    """

    def __init__(self, most_tests: int = MOST_TESTS) -> None:
        self._most_tests = most_tests
        self._lock = threading.Lock()
        self._tests: dict[str, TestState] = {}
        self.session: Session | None = None
        self.active = True
        self.outcomes: Counter[Outcome] = Counter()
        self.verdicts: Counter[Word] = Counter()
        self.dropped = 0

    @contextmanager
    def reading(self) -> Iterator[list[TestState]]:
        """The tests, oldest first; nothing changes until the block is left."""
        with self._lock:
            yield list(self._tests.values())

    def handle(self, event: Event) -> None:
        with self._lock:
            match event:
                case Session():
                    self.session = event
                case Started():
                    # Removed first: a test that runs again becomes the newest.
                    self._tests.pop(event.test, None)
                    self._tests[event.test] = TestState(event.test)
                    self._make_room()
                case Sample() if event.test in self._tests:
                    self._tests[event.test].add_sample(event)
                case Finished():
                    self._finish(self._tests.setdefault(event.test, TestState(event.test)), event)

    def end(self) -> None:
        """The run is over."""
        with self._lock:
            self.active = False
            for test in self._tests.values():
                test.running = False

    def _finish(self, test: TestState, event: Finished) -> None:
        test.finish(event)
        self.outcomes[event.outcome] += 1
        if test.word is not None:
            self.verdicts[test.word] += 1
        if not (test.failed or test.values):
            del self._tests[test.name]
        self._make_room()

    def _make_room(self) -> None:
        """Forget the oldest that are over, those that passed before those that failed."""
        while len(self._tests) > self._most_tests:
            over = [test for test in self._tests.values() if not test.running]
            if not over:
                return
            del self._tests[min(over, key=lambda test: test.failed).name]
            self.dropped += 1

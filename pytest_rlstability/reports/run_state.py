"""What a run has come to so far, kept from its events: for whoever has to tell it while the run lasts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pytest_rlstability.reports.history import History

MOST_TESTS = 250
"""Tests that are told one by one. A run of 10,000 tests must not become 10,000 times as many time series."""


@dataclass
class TestState:
    """One test: what its samples and its end have told."""

    __test__ = False

    name: str
    running: bool = True
    laps: int = 0
    values: Mapping[str, float] = field(default_factory=dict)
    history: History = field(default_factory=History)
    peak_memory: float = 0.0
    seconds: float | None = None
    failed: bool = False
    verdict: str = ""

    def hear_sample(self, event: Mapping[str, Any]) -> None:
        self.values = {**self.values, **event["values"]}
        self.laps = max(self.laps, int(event.get("lap", 0)))
        self.peak_memory = max(self.peak_memory, self.values.get("rss", 0.0))
        self.history.hear(event)

    def hear_end(self, event: Mapping[str, Any]) -> None:
        self.running = False
        self.seconds = event.get("duration")
        self.laps = max(self.laps, int(event.get("laps") or 0))
        self.peak_memory = float(event.get("peak_memory") or self.peak_memory)
        self.failed = event.get("outcome") == "failed"
        self.verdict = (event.get("verdict") or {}).get("word", "")


class RunState:
    """Hears events and remembers the tests worth telling of: those that run, those with samples, those that failed.

    ``with state.reading() as tests: ...`` holds events back for as long as it takes to read a consistent state.
    """

    def __init__(self, most_tests: int = MOST_TESTS) -> None:
        self._most_tests = most_tests
        self._lock = threading.Lock()
        self._tests: dict[str, TestState] = {}
        self.session: Mapping[str, Any] = {}
        self.active = True
        self.outcomes: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.dropped = 0

    @contextmanager
    def reading(self) -> Iterator[list[TestState]]:
        """The tests, oldest first; nothing changes until the block is left."""
        with self._lock:
            yield list(self._tests.values())

    def hear(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            self._take(event["event"], event)

    def end(self) -> None:
        """The run is over."""
        with self._lock:
            self.active = False
            for test in self._tests.values():
                test.running = False

    def _take(self, kind: str, event: Mapping[str, Any]) -> None:
        name = event["test"]
        if kind == "session":
            self.session = event
        elif kind == "started":
            # Popped first: a test that runs again is the newest, not where it was.
            self._tests.pop(name, None)
            self._tests[name] = TestState(name)
            self._make_room()
        elif kind == "sample" and name in self._tests:
            self._tests[name].hear_sample(event)
        elif kind == "finished":
            self._finish(self._tests.setdefault(name, TestState(name)), event)

    def _finish(self, test: TestState, event: Mapping[str, Any]) -> None:
        test.hear_end(event)
        self.outcomes[event["outcome"]] += 1
        if test.verdict:
            self.verdicts[test.verdict] += 1
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

"""Reads event logs back: one or many, whole or cut off, into runs and their tests.

``for run in read_runs([Path("run.jsonl")]): print(run.host, len(run.tests), run.damaged)``

There may be a million samples in a log: they are read in bulk, without an object for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from pytest_rlstability.model.events import SCHEMA, Finished, Judged, Outcome, Sample, Session, Started, from_json
from pytest_rlstability.model.messages import Json
from pytest_rlstability.model.series import PeakTable

loads: Callable[[bytes], Any] = json.loads
with suppress(ImportError):
    import orjson  # it reads a million samples in seconds

    loads = orjson.loads

_Whose = tuple[str, str, str]
_Place = tuple[str, int, _Whose]
_CHUNK = 1 << 20


class UnreadableLogError(Exception):
    """A file cannot be read as an event log; the text says which and why."""


@dataclass
class Attempt:
    """One run of a test, as far as the log has it: *finished* is None when the log ends before the test."""

    started: Started | None = None
    finished: Finished | None = None
    course: PeakTable = field(default_factory=PeakTable)
    warmup: float = 0.0
    """The lap at which measuring began."""
    judged: Sequence[Judged] = ()
    """The judgements of a leak check."""

    @property
    def end(self) -> Finished:
        """How it ended: ``interrupted`` when the log ends before the test."""
        return self.finished or Finished(outcome=Outcome.INTERRUPTED)

    @property
    def started_at(self) -> float:
        """When it began, in seconds since the epoch; 0 when that is not known."""
        return self.started.time if self.started else 0.0


@dataclass
class TestRecord:
    """A test in one place: which host and worker ran it, and each time it was run there."""

    __test__ = False

    nodeid: str
    host: str
    worker: str
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]


@dataclass
class RunRecord:
    """One run of pytest: how it began (None when the log's beginning is lost) and its tests."""

    source: str
    session: Session | None = None
    tests: dict[_Whose, TestRecord] = field(default_factory=dict)
    damaged: int = 0
    """Lines that could not be read: cut off by a power failure, or not an event."""
    first_time: float = 0.0
    last_time: float = 0.0

    @property
    def host(self) -> str:
        return self.session.host if self.session else next((test.host for test in self.tests.values()), "")


def read_runs(paths: Iterable[Path]) -> list[RunRecord]:
    """Every run in the event logs at *paths*, in their order. Raises ``UnreadableLogError``."""
    runs: list[RunRecord] = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                runs += read_log(file, str(path))
        except OSError as error:
            raise UnreadableLogError(f"{path}: {error.strerror or error}") from None
    return runs


def read_log(file: IO[bytes], source: str) -> list[RunRecord]:
    """The runs in one event log: usually one, more when several were written one after the other."""
    reader = _Reader(source)
    while lines := file.readlines(_CHUNK):
        events = [_parse(line) for line in lines if not line.isspace()]
        for place, group in groupby(events, key=_place):
            reader.take(place, list(group))
    return reader.finish()


def _parse(line: bytes) -> Any:
    """What is in a line; None if it cannot be read."""
    try:
        return loads(line)
    except (ValueError, RecursionError):
        with suppress(ValueError, RecursionError):
            return json.loads(line)  # also reads NaN and numbers of any length, which orjson refuses
    return None


def _place(event: Any) -> _Place | None:
    """The kind of *event*, its schema, and the test that it belongs to; None for what is not an event."""
    try:
        return event["event"], event["schema"], (event["test"], event.get("host", ""), event.get("worker", ""))
    except (AttributeError, KeyError, TypeError):
        return None


class _Reader:
    """Sorts the events of one file into runs and tests."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._events = 0
        self._run = RunRecord(source)
        self._runs = [self._run]

    def take(self, place: _Place | None, events: list[Json]) -> None:
        """Take in successive events of the same kind and test."""
        if place is None or type(place[1]) is not int or any(type(name) is not str for name in (place[0], *place[2])):
            self._run.damaged += len(events)
            return
        kind, schema, whose = place
        if schema > SCHEMA:
            raise UnreadableLogError(
                f"{self._source}: written by a newer pytest-rlstability (schema {schema}; this one reads schema "
                f"{SCHEMA}): pip install -U pytest-rlstability"
            )
        try:
            self._note_time(events)
            if kind == "sample":
                self._samples(self._test(whose), events)
            else:
                for event in [from_json(data) for data in events]:
                    self._turn(whose, event)
        except (AttributeError, KeyError, TypeError, ValueError):
            if len(events) == 1:
                self._run.damaged += 1
            else:
                for data in events:
                    self.take(place, [data])
            return
        self._events += len(events)

    def finish(self) -> list[RunRecord]:
        if not self._events:
            raise UnreadableLogError(f"{self._source}: not an event log of --rl-jsonl (no event in it)")
        for test in (test for run in self._runs for test in run.tests.values()):
            for attempt in test.attempts:
                attempt.course.finish()
        return self._runs

    def _note_time(self, events: Sequence[Json]) -> None:
        first, last = events[0]["time"] + 0.0, events[-1]["time"] + 0.0
        self._run.first_time = min(self._run.first_time or first, first)
        self._run.last_time = max(self._run.last_time, last)

    def _turn(self, whose: _Whose, event: object) -> None:
        """Handle an event that is not a sample."""
        match event:
            case Session():
                if self._events:
                    self._run = RunRecord(self._source, first_time=event.time, last_time=event.time)
                    self._runs.append(self._run)
                self._run.session = event
            case Started():
                self._test(whose).attempts.append(Attempt(started=event))
            case Finished():
                test = self._test(whose)
                if not test.attempts or test.last.finished:
                    test.attempts.append(Attempt())
                test.last.finished = event

    def _samples(self, test: TestRecord, events: Sequence[Json]) -> None:
        test.attempts = test.attempts or [Attempt()]
        attempt = test.last
        measured = [event for event in events if event["values"]]
        laps = [event.get("lap", 0) for event in measured]
        start = attempt.started_at or events[0]["time"]
        seconds = [event["seconds"] if "seconds" in event else event["time"] - start for event in measured]
        attempt.course.extend(laps, seconds, [event["values"] for event in measured])
        attempt.warmup = float(events[-1].get("warmup", attempt.warmup))
        for event in events:
            if "judged" in event and isinstance(sample := from_json(event), Sample):
                attempt.judged = sample.judged or ()

    def _test(self, whose: _Whose) -> TestRecord:
        return self._run.tests.setdefault(whose, TestRecord(*whose))

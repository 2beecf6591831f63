"""Reads event logs back: one or many, whole or cut off, into runs and their tests.

``for run in read_runs([Path("run.jsonl")]): print(run.host, len(run.tests), run.damaged)``
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import IO, Any, TypeGuard

from pytest_rlstability.events import SCHEMA
from pytest_rlstability.reports.course import Course

_Event = dict[str, Any]
_Whose = tuple[str, str, str]
_Place = tuple[str, int, _Whose]
_CHUNK = 1 << 20
_SHAPES: dict[str, type] = {
    "verdict": dict, "phases": dict, "output": dict, "stages": list, "leftovers": list, "arguments": list, "report": str
}  # fmt: skip


class UnreadableLogError(Exception):
    """This file cannot be read as an event log; the text says which and why."""


@dataclass
class Attempt:
    """One run of a test, as far as the log tells: *finished* stays empty when the end never came."""

    started: _Event = field(default_factory=dict)
    finished: _Event = field(default_factory=dict)
    course: Course = field(default_factory=Course)
    warmup: float = 0.0
    """The lap at which measuring began."""
    judged: list[_Event] = field(default_factory=list)
    """What a leak check said of each signal: state, slope, limits."""

    @property
    def begun(self) -> float:
        """When it began, in seconds since the epoch; 0 when that was not told."""
        return float(self.started.get("time") or 0.0)


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
    """One run of pytest: its session's facts (empty when the log's beginning is lost) and its tests."""

    source: str
    session: _Event = field(default_factory=dict)
    tests: dict[_Whose, TestRecord] = field(default_factory=dict)
    damaged: int = 0
    """Lines that could not be read: cut off by a power failure, or no event at all."""
    first_time: float = 0.0
    last_time: float = 0.0

    @property
    def host(self) -> str:
        return str(self.session.get("host") or next((test.host for test in self.tests.values()), ""))


def read_runs(paths: Iterable[Path]) -> list[RunRecord]:
    """Every run in the event logs at *paths*, in their order; a file that is none is an ``UnreadableLogError``."""
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
    loads = _quickest_loads()
    while lines := file.readlines(_CHUNK):
        for place, group in groupby(_parse(lines, loads), key=_place):
            reader.take(place, list(group))
    return reader.finish()


def _parse(lines: Sequence[bytes], loads: Callable[[bytes], Any]) -> list[Any]:
    """What is in each line, None where that cannot be read."""
    try:
        return [loads(line) for line in lines]
    except (ValueError, RecursionError):
        return [_slowly(line) for line in lines if line.strip()]


def _place(event: Any) -> _Place | None:
    """What kind of event this is and whose; None for what is no event."""
    try:
        return event["event"], event["schema"], (event["test"], event.get("host", ""), event.get("worker", ""))
    except (AttributeError, KeyError, TypeError):
        return None


def _is_sound(place: _Place | None) -> TypeGuard[_Place]:
    if place is None:
        return False
    kind, schema, whose = place
    return type(schema) is int and all(type(name) is str for name in (kind, *whose))


def _quickest_loads() -> Callable[[bytes], Any]:
    """orjson reads a million samples in seconds; where it is missing, the standard library needs a few more."""
    try:
        import orjson
    except ImportError:
        return json.loads
    loads: Callable[[bytes], Any] = orjson.loads
    return loads


def _slowly(line: bytes) -> object:
    """What only the standard library reads: not-a-numbers, and numbers of any length."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _well_shaped(event: _Event) -> _Event:
    """*event* without the keys that hold something else than this version writes there."""
    return {key: value for key, value in event.items() if isinstance(value, _SHAPES.get(key, object))}


class _Reader:
    """Puts the events of one file in their places."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._events = 0
        self._run = RunRecord(source)
        self._runs = [self._run]

    def take(self, place: _Place | None, events: list[_Event]) -> None:
        """Take in events that came one after the other from the same place."""
        if not _is_sound(place):
            self._run.damaged += len(events)
            return
        kind, schema, whose = place
        if schema > SCHEMA:
            raise UnreadableLogError(
                f"{self._source}: written by a newer pytest-rlstability (schema {schema}; this one reads schema "
                f"{SCHEMA}): pip install -U pytest-rlstability"
            )
        try:
            self._tell_time(events)
            if kind == "sample":
                self._samples(self._attempt(whose), events)
            else:
                for event in events:
                    self._turn(kind, whose, event)
        except (AttributeError, KeyError, TypeError, ValueError):
            if len(events) == 1:
                self._run.damaged += 1
            else:
                for event in events:
                    self.take(place, [event])
            return
        self._events += len(events)

    def finish(self) -> list[RunRecord]:
        if not self._events:
            raise UnreadableLogError(f"{self._source}: not an event log of --rl-jsonl (no event in it)")
        for test in (test for run in self._runs for test in run.tests.values()):
            for attempt in test.attempts:
                attempt.course.finish()
        return self._runs

    def _tell_time(self, events: Sequence[_Event]) -> None:
        first, last = events[0]["time"] + 0.0, events[-1]["time"] + 0.0
        self._run.first_time = min(self._run.first_time or first, first)
        self._run.last_time = max(self._run.last_time, last)

    def _turn(self, kind: str, whose: _Whose, event: _Event) -> None:
        """An event that says where in the run we are."""
        if kind == "session":
            if self._events:
                self._run = RunRecord(self._source, first_time=event["time"], last_time=event["time"])
                self._runs.append(self._run)
            self._run.session = _well_shaped(event)
        elif kind == "started":
            self._test(whose).attempts.append(Attempt(started=event))
        elif kind == "finished":
            attempt = self._attempt(whose)
            if attempt.finished:
                attempt = Attempt()
                self._test(whose).attempts.append(attempt)
            attempt.finished = _well_shaped(event)

    def _samples(self, attempt: Attempt, events: Sequence[_Event]) -> None:
        measured = [event for event in events if event["values"] and "judged" not in event]
        laps = [event.get("lap", 0) for event in measured]
        begun = attempt.begun or events[0]["time"]
        seconds = [event["seconds"] if "seconds" in event else event["time"] - begun for event in measured]
        attempt.course.add(laps, seconds, [event["values"] for event in measured])
        attempt.warmup = float(events[-1].get("warmup", attempt.warmup))
        for event in events:
            if "judged" in event:
                attempt.judged = [entry for entry in event["judged"] if isinstance(entry["signal"], str)]

    def _attempt(self, whose: _Whose) -> Attempt:
        test = self._test(whose)
        if not test.attempts:
            test.attempts.append(Attempt())
        return test.attempts[-1]

    def _test(self, whose: _Whose) -> TestRecord:
        if whose not in self._run.tests:
            self._run.tests[whose] = TestRecord(*whose)
        return self._run.tests[whose]

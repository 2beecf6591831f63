"""The events of a run: what the engine emits, what reports handle, and the lines of the event log.

``Session`` comes first, once; then for each test ``Started``, any number of ``Sample``, and ``Finished``. In the log an
event is one line of JSON, ``{"event": "started", "schema": 1, "test": ..., "time": ..., "pid": ...}``: the name of its
class, and its fields. A field that is None is left out, unless the class names it in ``ALWAYS_WRITTEN``.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from pytest_rlstability.model.json_text import printable
from pytest_rlstability.model.messages import Json, Sampled
from pytest_rlstability.model.soak_state import SoakState
from pytest_rlstability.model.verdict import Location, Verdict, plain_values

SCHEMA = 1
"""Of the event log. A reader ignores keys it does not know; this number changes when a known key changes meaning."""

T = TypeVar("T")


class Outcome(StrEnum):
    """How a test ended, in pytest's words; ``interrupted`` is a soak that the end of the run cut short."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class Event:
    """What all events have. *worker* is the one of pytest-xdist."""

    ALWAYS_WRITTEN: ClassVar[tuple[str, ...]] = ()

    test: str = ""
    time: float = field(default_factory=time.time)
    host: str = ""
    worker: str = ""

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True, kw_only=True)
class Session(Event):
    """The run begins in the directory *root*. *signals* describes those that other plugins add."""

    pid: int = 0
    root: str = ""
    platform: str = ""
    versions: str = ""
    seed: int | None = None
    signals: Mapping[str, Any] = field(default_factory=dict)
    arguments: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """A test begins. One that is repeated or run again starts more than once."""

    pid: int = 0
    backend: str = ""
    seed: int | None = None


@dataclass(frozen=True)
class Judged:
    """The judgement of a leak check on one signal: *slope* is its growth *per* lap or minute, *slope_limit* limits
    that, *most* the value itself."""

    signal: str
    state: str = ""
    reason: str = ""
    slope: float = 0.0
    per: str = "lap"
    slope_limit: float | None = None
    most: float | None = None


@dataclass(frozen=True, kw_only=True)
class Sample(Event):
    """Values measured at one moment of a test. *seconds* and *cpu_seconds* are the test's own clocks, *warmup* is the
    lap at which measuring began, *judged* comes with the last sample of a leak check, and *waits_for* says what keeps
    the check from ending."""

    values: Mapping[str, float]
    lap: int = 0
    warmup: int | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    lap_seconds: float | None = None
    seed: int | None = None
    judged: Sequence[Judged] | None = None
    waits_for: str | None = None

    @classmethod
    def of(cls, test: str, sampled: Sampled) -> Sample:
        """The event for a message of the test's process."""
        own = {one.name: getattr(sampled, one.name) for one in fields(sampled) if one.name not in ("judged", "soak")}
        return cls(test=test, judged=None if sampled.judged is None else _judged(sampled.judged), **own)


@dataclass(frozen=True, kw_only=True)
class Finished(Event):
    """A test is over. *leftovers* are the processes that it left running, *report* is pytest's text of a failure,
    *output* what the test wrote, by stream. *message* and *location* say in one line how and where a test without a
    verdict failed, *undecided* why a check of a test that passed reached no answer. The fields from *runs* on are those
    of an ``rl_flaky`` test."""

    ALWAYS_WRITTEN = ("soak", "verdict", "reproduce")

    outcome: Outcome
    duration: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    backend: str = ""
    seed: int | None = None
    laps: int = 0
    soak: SoakState | None = None
    peak_memory: float = 0
    leftovers: Sequence[str] = ()
    stages: Sequence[str] = ()
    reason: str = ""
    undecided: str = ""
    xfailed: bool = False
    message: str = ""
    location: Location | None = None
    verdict: Verdict | None = None
    reproduce: str | None = None
    report: str = ""
    output: Mapping[str, str] = field(default_factory=dict)
    runs: int | None = None
    passes: int | None = None
    pass_rate: float | None = None
    interval_low: float | None = None
    interval_high: float | None = None
    limit: float | None = None

    @property
    def failed(self) -> bool:
        return self.outcome is Outcome.FAILED


@dataclass(frozen=True, kw_only=True)
class Note(Event):
    """Something about a running test for the terminal only: no report gets it, and the log does not have it."""


@dataclass(frozen=True, kw_only=True)
class Progress(Note):
    """How far a soak has come."""

    soak: SoakState
    seconds: float = 0.0
    laps: int = 0
    laps_per_second: float = 0.0
    phase: str = ""
    stage: str = ""


@dataclass(frozen=True, kw_only=True)
class Slow(Note):
    """A test makes no progress, and will fail if that goes on."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Busy(Note):
    """Something that takes a while, between tests or for a test that has ended."""

    text: str


_KINDS: dict[str, type[Event]] = {
    kind.__name__.lower(): kind for kind in (Session, Started, Sample, Finished, Progress, Slow, Busy)
}


def to_json(event: Event) -> Json:
    """*event* in JSON's own types, which are also the ones that execnet carries through xdist."""
    values = {one.name: getattr(event, one.name) for one in fields(event)}
    written = {name: value for name, value in values.items() if value is not None or name in event.ALWAYS_WRITTEN}
    return {"event": event.kind, "schema": SCHEMA, **{name: plain_values(value) for name, value in written.items()}}


def to_line(event: Event) -> str:
    """*event* as a line of the log; a value that JSON does not know becomes text."""
    return json.dumps(to_json(event), default=printable) + "\n"


def from_json(data: Mapping[str, Any]) -> Event | None:
    """The event that ``to_json`` made *data* of; None for a kind that this version does not know. Unknown keys are
    ignored, and so are values of another type than it writes. ``KeyError`` or ``TypeError``: not an event."""
    kind = _KINDS.get(data["event"])
    if not isinstance(data["test"], str) or not isinstance(data["time"], (int, float)):
        raise TypeError("not an event: no test or no time")
    return None if kind is None else _read(kind, data)


def _read(kind: type[T], data: Mapping[str, Any]) -> T:
    known = {}
    for name, read in _FIELD_READERS[kind].items():
        if (value := data.get(name)) is not None:
            try:
                known[name] = read(value)
            except (AttributeError, KeyError, TypeError, ValueError):
                pass  # not what this version writes there
    return kind(**known)


def _require(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise TypeError(value)
    return value


def _number(value: Any) -> Any:
    if not math.isfinite(value):
        raise ValueError(value)
    return value


def _numbers(value: Mapping[str, float]) -> dict[str, float]:
    return {str(name): number for name, number in value.items() if isinstance(number, (int, float))}


def _judged(value: Sequence[Json]) -> tuple[Judged, ...]:
    return tuple(_read(Judged, entry) for entry in value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "str": lambda value: _require(str, value),
    "bool": bool,
    "int": _number,
    "float": _number,
    "Sequence[str]": lambda value: tuple(map(str, _require(list, value))),
    "Sequence[Judged]": _judged,
    "Mapping[str, float]": _numbers,
    "Mapping[str, str]": lambda value: {str(name): str(text) for name, text in value.items()},
    "Mapping[str, Any]": dict,
    "Location": lambda value: Location(**value),
    "Outcome": Outcome,
    "SoakState": SoakState.from_dict,
    "Verdict": Verdict.from_dict,
}
"""How a field is read, by its annotation."""
_FIELD_READERS: dict[type[Any], dict[str, Callable[[Any], Any]]] = {
    kind: {one.name: _READERS[str(one.type).removesuffix(" | None")] for one in fields(kind)}
    for kind in (*_KINDS.values(), Judged)
}

"""Events as lines of the log, and back."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from pytest_rlstability.model.events import (
    Busy,
    Event,
    Finished,
    Judged,
    Outcome,
    Progress,
    Sample,
    Session,
    Slow,
    Started,
    from_json,
    to_json,
    to_line,
)
from pytest_rlstability.model.messages import Sampled
from pytest_rlstability.model.soak_state import SoakState
from pytest_rlstability.model.verdict import Location, Verdict, Word

WHERE: dict[str, Any] = {"test": "t.py::test_it", "host": "here", "worker": "gw1"}
FULL: list[Event] = [
    Session(pid=1, platform="Linux", versions="pytest", seed=7, signals={"a": {"unit": "count"}}, arguments=("-q",)),
    Started(**WHERE, pid=1, backend="zygote", seed=7),
    Sample(**WHERE, values={"rss": 1.5}, lap=3, warmup=1, seconds=2.0, cpu_seconds=1.0, lap_seconds=0.5, seed=7),
    Sample(**WHERE, values={}, judged=(Judged("fds", "leak", "grows", 1.0, "minute", 0.5, 9.0),), waits_for="laps"),
    Finished(
        **WHERE,
        outcome=Outcome.FAILED,
        duration=1.5,
        phases={"call": 1.0},
        backend="spawn",
        seed=7,
        laps=3,
        soak=SoakState(duration=60.0, laps=3),
        peak_memory=5,
        leftovers=("sleep 60 (pid 7)",),
        stages=("load", "step"),
        reason="because",
        undecided="too few laps",
        message="KeyError: 4",
        location=Location("env.py", 9, "reset"),
        xfailed=True,
        verdict=Verdict(Word.LEAK, "fds grow", (("", "x"),), {"laps": 3}, Location("env.py", 4, "step")),
        reproduce="pytest",
        report="E  x",
        output={"Captured stdout": "y"},
        runs=4,
        passes=1,
        pass_rate=0.25,
        interval_low=0.1,
        interval_high=0.4,
        limit=0.95,
    ),
    Progress(**WHERE, soak=SoakState(duration=60.0), seconds=5.0, laps=2, laps_per_second=0.4, phase="call", stage="s"),
    Slow(**WHERE, text="no progress"),
    Busy(**WHERE, text="looks for the culprit"),
]


@pytest.mark.parametrize("event", FULL, ids=lambda event: event.kind)
def test_nothing_is_lost_on_the_way(event):
    assert from_json(json.loads(to_line(event))) == event
    execnet = pytest.importorskip("execnet")
    assert execnet.loads(execnet.dumps(to_json(event))) == to_json(event)


def test_every_field_of_every_event_was_tried():
    for kind in {type(event) for event in FULL} - {Session}:
        plain = {one.name: one.default for one in fields(kind)}
        for name, default in plain.items():
            assert any(getattr(event, name) != default for event in FULL if type(event) is kind), (kind, name)


def test_the_keys_of_the_log_stay():
    """Its schema is public: other programs read it."""
    log = to_json(Finished(test="t", time=5.0, outcome=Outcome.PASSED))
    assert {"event": "finished", "schema": 1, "test": "t", "time": 5.0, "outcome": "passed"}.items() <= log.items()
    assert (log["verdict"], log["soak"], log["reproduce"]) == (None, None, None)
    assert "runs" not in log
    sample = to_json(Sample(test="t", time=5.0, values={"rss": 1.0}))
    assert set(sample) == {"event", "schema", "test", "time", "host", "worker", "values", "lap"}


def test_readers_ignore_what_they_do_not_know():
    data = {"event": "finished", "schema": 1, "test": "t", "time": 5.0, "outcome": "passed"}
    known = Finished(test="t", time=5.0, outcome=Outcome.PASSED)
    assert from_json({**data, "weather": "sunny"}) == known
    odd = {"stages": 5, "verdict": "odd", "output": ["odd"], "duration": "long", "phases": 3, "laps": float("nan")}
    assert from_json({**data, **odd}) == known
    assert from_json({**data, "verdict": {"word": "GRASH", "headline": "x"}}) == known
    assert from_json({**data, "event": "weather"}) is None


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"event": "started", "test": "t"},
        {"event": "started", "test": 7, "time": 1.0},
        {"event": "started", "test": "t", "time": "noon"},
        {"event": "finished", "test": "t", "time": 1.0},
        {"event": "finished", "test": "t", "time": 1.0, "outcome": "odd"},
        {"event": "sample", "test": "t", "time": 1.0},
    ],
)
def test_what_is_not_an_event_is_refused(data):
    with pytest.raises((KeyError, TypeError)):
        from_json(data)


def test_a_message_of_the_test_becomes_a_sample():
    judged = [{"signal": "fds", "state": "leak", "slope": 1.0}]
    sampled = Sampled(lap=3, seconds=2.0, values={"fds": 4.0}, judged=judged, soak={"duration": 60})
    expected = Sample(
        test="t", time=1.0, values={"fds": 4.0}, lap=3, seconds=2.0, judged=(Judged("fds", "leak", slope=1.0),)
    )
    found = Sample.of("t", sampled)
    assert {**vars(found), "time": 1.0} == vars(expected)

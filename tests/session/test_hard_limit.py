"""The limit that every test has: what counts of its time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlstability.session.watchdogs import limits
from pytest_rlstability.session.watchdogs.limits import HardLimit


@pytest.mark.parametrize(
    ("fresh", "start", "ended_at"),
    [
        pytest.param(True, 20.0, 30.0, id="the start of an interpreter does not count"),
        pytest.param(True, 900.0, 70.0, id="a start without end does"),
        pytest.param(False, 20.0, 10.0, id="a fork has no start"),
        pytest.param(True, 0.0, 10.0, id="it was prepared before"),
    ],
)
def test_what_counts(monkeypatch: pytest.MonkeyPatch, fresh: bool, start: float, ended_at: float) -> None:
    clock = [0.0]
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(limits, "watch_briefly", lambda process, directory: dict)
    limit = HardLimit("limit", 10.0, Path())
    killed = None
    while killed is None:
        clock[0] = limit.due
        counters = SimpleNamespace(phase="start" if clock[0] < start else "call")
        process: Any = SimpleNamespace(first_order=object() if fresh else None, counters=counters)
        killed = limit.check(process)
    assert clock[0] == pytest.approx(ended_at, abs=1.0)

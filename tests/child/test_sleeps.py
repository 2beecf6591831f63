"""Sleeps of a test are noted where the system does not show when they end."""

from __future__ import annotations

import pickle
import time

import pytest

from pytest_rlstability.child import alarms


def test_sleeps_are_noted_where_nobody_can_see_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", time.sleep)
    monkeypatch.setattr(alarms, "STACKS_SIGNAL", None)
    noted: list[float] = []
    alarms.report_sleeps(noted.append)
    time.sleep(0.001)
    time.sleep(0)
    with pytest.raises(ValueError, match="non-negative"):
        time.sleep(-1)
    with pytest.raises(TypeError):
        time.sleep("a while")  # type: ignore[arg-type]
    assert noted == [0.001]
    assert pickle.loads(pickle.dumps(time.sleep)) is time.sleep


def test_sleeps_are_left_alone_where_they_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "STACKS_SIGNAL", 41)
    before = time.sleep
    alarms.report_sleeps(lambda seconds: None)
    assert time.sleep is before

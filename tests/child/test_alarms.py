"""An alarm that the test sets itself may end what looks like a deadlock, as long as it is still to come."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from pytest_rlstability.child.alarms import report_alarms
from pytest_rlstability.model import progress_counters
from pytest_rlstability.model.progress_counters import ProcessCounters, ProgressCounters

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no alarms")


@pytest.fixture
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessCounters:
    """The cells of this process, while its alarms are announced and never set."""
    counters = ProgressCounters(tmp_path).of_process(0)
    counters.begin()
    monkeypatch.setattr(signal, "alarm", lambda seconds: 0)
    monkeypatch.setattr(signal, "setitimer", lambda which, seconds, interval=0.0: (0.0, 0.0))
    report_alarms(lambda seconds, again: counters.set_alarm(seconds, again=again))
    return counters


@pytest.mark.parametrize("otherwise", [True, False])
def test_nothing_is_known_before_one_is_set(counters: ProcessCounters, otherwise: bool) -> None:
    assert counters.expects_alarm(otherwise) is otherwise


def test_an_alarm_is_expected_until_it_is_taken_back(counters: ProcessCounters) -> None:
    signal.alarm(1000)
    assert counters.expects_alarm(otherwise=False)
    counters.clear()
    assert counters.expects_alarm(otherwise=False), "the next test of the process"
    signal.alarm(0)
    assert not counters.expects_alarm(otherwise=True)


def test_an_alarm_that_went_off_is_not_expected_any_more(
    counters: ProcessCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal.setitimer(signal.ITIMER_REAL, 2.0)
    now = time.monotonic_ns()
    monkeypatch.setattr(progress_counters, "_clock", (lambda: now + 2_200_000_000,))
    assert counters.expects_alarm(otherwise=False), "its handler may only just begin"
    monkeypatch.setattr(progress_counters, "_clock", (lambda: now + 2_600_000_000,))
    assert not counters.expects_alarm(otherwise=True)


def test_one_that_goes_off_again_is(counters: ProcessCounters, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.setitimer(signal.ITIMER_REAL, 1e-9, 5.0)
    assert counters.expects_alarm(otherwise=False)
    signal.setitimer(signal.ITIMER_REAL, 0, 5.0)
    monkeypatch.setattr(progress_counters, "_clock", (lambda: 1_000_000_000,))
    assert not counters.expects_alarm(otherwise=True)


def test_a_timer_of_processor_time_cannot_go_off_while_all_wait(counters: ProcessCounters) -> None:
    signal.setitimer(signal.ITIMER_PROF, 1000.0)
    assert not counters.expects_alarm(otherwise=False)

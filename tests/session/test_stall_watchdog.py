"""The watch with a clock and threads made up for it: what it ends, and what it lets be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlstability.model.run import Killed
from pytest_rlstability.osinfo.threads import ThreadState, TreeState
from pytest_rlstability.session.stack_waits import StackWaits
from pytest_rlstability.session.watchdogs import stall as stall_watch
from pytest_rlstability.session.watchdogs.stall import StallWatch

ASLEEP = ThreadState(7, 7, "python", "S", 1, 1, call="futex", endless=True)
AT_A_SOCKET = ThreadState(7, 7, "python", "S", 1, 1, call="recvfrom", descriptor=3)
READY = ThreadState(7, 7, "python", "R", 1, 1, call="")


def watched(
    monkeypatch: pytest.MonkeyPatch, known: ThreadState, now: ThreadState, *, alarm: bool = False, seconds: float = 60.0
) -> Killed | None:
    """What becomes of a test whose thread was seen *known*, and is *now*, over so many seconds."""
    clock = [100.0]

    def look(pid: int, members: object, before: object = "as it is") -> TreeState:
        return TreeState((now if before == "as it is" else known,))

    fakes: dict[str, Any] = {
        "time": SimpleNamespace(monotonic=lambda: clock[0], thread_time=lambda: 0.0),
        "look_at_tree": look,
        "members_of": lambda pid, strangers: [pid],
        "ticks_of": lambda pid: 1,
        "can_be_woken": lambda tree, alarm_is_ours, ours: not alarm_is_ours,
        "waits_outside": lambda tree, main: False,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(stall_watch, name, fake)
    counters = SimpleNamespace(phase="call", phase_entered=1, beats=0, beating=False)
    counters.expects_alarm = lambda otherwise: alarm
    process: Any = SimpleNamespace(
        pid=7,
        main=7,
        counters=counters,
        lock_waits={},
        stack_waits=StackWaits(),
        daemon_threads=set(),
        inherited_threads=set(),
        own_signals=(),
    )
    watch = StallWatch(30.0, Path(), lambda text: None, lambda process, threads: "")
    while clock[0] < 100.0 + seconds:
        clock[0] = watch.due
        killed = watch.check(process)
        if killed is not None:
            return killed
    return None


def told_after(killed: Killed | None) -> float | None:
    return None if killed is None else float(killed.detail.removeprefix("no progress for ").split()[0])


def test_a_certain_deadlock_is_told_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    after = told_after(watched(monkeypatch, ASLEEP, ASLEEP))
    assert after is not None
    assert 2.5 <= after < 4.0


def test_an_alarm_to_come_may_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    after = told_after(watched(monkeypatch, ASLEEP, ASLEEP, alarm=True))
    assert after is not None
    assert 30.0 <= after < 33.0


def test_a_wait_for_others_is_told_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    after = told_after(watched(monkeypatch, AT_A_SOCKET, AT_A_SOCKET))
    assert after is not None
    assert 30.0 <= after < 33.0


@pytest.mark.parametrize("known", [ASLEEP, AT_A_SOCKET])
def test_a_thread_that_is_ready_and_gets_no_processor_does_not_stand_still(
    monkeypatch: pytest.MonkeyPatch, known: ThreadState
) -> None:
    assert watched(monkeypatch, known, READY) is None

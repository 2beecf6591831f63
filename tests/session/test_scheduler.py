"""Which process runs which test: decided without a process, a clock or a pytest item."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from runs import make_run

from pytest_rlstability.model.messages import TestDone
from pytest_rlstability.model.run import Exit
from pytest_rlstability.session import scheduler as module
from pytest_rlstability.session.scheduler import Place, Scheduler


@dataclass(eq=False)
class FakeRun:
    """Stands for an ``ActiveRun``: the test, its process and its run."""

    item: str
    process: int
    run: Any = field(default_factory=make_run)
    has_followers: bool = False


class FakeLauncher:
    """Tests are names. Those of group G are called ``G1``, ``G2``; small letters have a process of their own."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.processes = 0
        self.ready = True
        self.room = 1000
        self.lost: set[int] = set()
        """Processes that died with their parent while they waited."""

    def group_of(self, item: str) -> str | None:
        return item[0] if item[0].isupper() else None

    def can_start_early(self, item: str) -> bool:
        return self.ready

    def start(self, item: str, place: Place) -> FakeRun:
        self.processes += 1
        return self._note("start", item, self.processes, place)

    def send(self, before: FakeRun, item: str, place: Place) -> FakeRun:
        return self._note("send", item, before.process, place)

    def can_queue(self, active: FakeRun) -> bool:
        return self.room > 0

    def send_queued(self, active: FakeRun, item: str, place: Place) -> None:
        self.room -= 1
        self._note("queue", item, active.process, place)

    def follow_queued(self, before: FakeRun, item: str, place: Place) -> FakeRun:
        return self._note("follow", item, before.process, place)

    def prewarm(self, item: str) -> None:
        self.calls.append(f"prewarm {item}")

    def is_lost(self, active: FakeRun) -> bool:
        return active.process in self.lost

    def release(self, active: FakeRun) -> None:
        self.calls.append(f"release {active.process}")

    def finish(self, active: FakeRun) -> None:
        self.calls.append(f"finish {active.process}")

    def kill(self, active: FakeRun) -> None:
        self.calls.append(f"kill {active.process}")

    def _note(self, what: str, item: str, process: int, place: Place) -> FakeRun:
        after = f" before {place.next_item}" if place.next_item else ""
        self.calls.append(f"{what} {item} in {process}{', stays' if place.stays else ''}{after}")
        return FakeRun(item, process)

    def take(self) -> list[str]:
        taken, self.calls = self.calls, []
        return taken


def scheduler(launcher: FakeLauncher, order: list[str] | None, *, overlaps: bool = False) -> Any:
    return Scheduler(launcher, order, overlaps=overlaps)  # type: ignore[arg-type]


def passes(schedule: Any, active: FakeRun, *, continues: bool = False) -> None:
    """The test is over, and its process lives."""
    active.run.seen.done = TestDone(laps=0, continues=continues)
    schedule.finish(active)


def ends(schedule: Any, active: FakeRun, status: int = 0) -> None:
    """The test is over, and its process with it."""
    active.run.ending.exit = Exit(status)
    schedule.finish(active)


def test_a_test_with_a_process_of_its_own():
    launcher = FakeLauncher()
    schedule = scheduler(launcher, ["a", "b"])
    ends(schedule, schedule.begin("a", "b"))
    assert launcher.take() == ["start a in 1", "prewarm b", "release 1"]
    ends(schedule, schedule.begin("b", None))
    assert launcher.take() == ["start b in 2", "release 2"]


def test_tests_of_a_group_share_a_process_until_its_last():
    launcher = FakeLauncher()
    schedule = scheduler(launcher, ["G1", "G2", "b"])
    passes(schedule, schedule.begin("G1", "G2"))
    passes(schedule, schedule.begin("G2", "b"))
    assert launcher.take() == ["start G1 in 1, stays before G2", "send G2 in 1, stays", "prewarm b", "finish 1"]


def test_a_groups_process_waits_while_a_test_runs_in_its_own():
    launcher = FakeLauncher()
    schedule = scheduler(launcher, ["G1", "own", "G2"])
    passes(schedule, schedule.begin("G1", "own"))
    ends(schedule, schedule.begin("own", "G2"))
    passes(schedule, schedule.begin("G2", None))
    assert launcher.take() == [
        "start G1 in 1, stays before G2",
        "prewarm own",
        "start own in 2",
        "prewarm G2",
        "release 2",
        "send G2 in 1, stays",
        "finish 1",
    ]


def test_a_group_goes_on_in_a_new_process_after_a_crash():
    launcher = FakeLauncher()
    schedule = scheduler(launcher, ["G1", "G2", "G3"])
    ends(schedule, schedule.begin("G1", "G2"), status=-11)
    passes(schedule, schedule.begin("G2", "G3"))
    passes(schedule, schedule.begin("G3", None))
    assert launcher.take() == [
        "start G1 in 1, stays before G2",
        "release 1",
        "start G2 in 2, stays before G3",
        "send G3 in 2, stays",
        "finish 2",
    ]


def test_another_group_ends_the_process_of_the_one_before():
    """The order was not known, so that the first group's process was kept."""
    launcher = FakeLauncher()
    schedule = scheduler(launcher, None)
    passes(schedule, schedule.begin("G1", "own"))
    ends(schedule, schedule.begin("own", "H1"))
    schedule.begin("H1", None)
    assert launcher.take() == [
        "start G1 in 1, stays before own",
        "prewarm own",
        "start own in 2",
        "prewarm H1",
        "release 2",
        "finish 1",
        "start H1 in 3, stays",
    ]


def test_the_next_test_of_a_group_is_queued_and_followed():
    launcher = FakeLauncher()
    schedule = scheduler(launcher, ["G1", "G2", "G3"], overlaps=True)
    first = schedule.begin("G1", "G2")
    queued = ["queue G2 in 1, stays before G3", "queue G3 in 1, stays"]
    assert launcher.take() == ["start G1 in 1, stays before G2", *queued]
    assert first.has_followers
    passes(schedule, first, continues=True)
    assert launcher.take() == ["follow G2 in 1, stays before G3"]
    schedule.start_early("G2")
    second = schedule.begin("G2", "G3")
    assert (second.item, second.process) == ("G2", 1)
    assert launcher.take() == []
    passes(schedule, second, continues=True)
    third = schedule.begin("G3", None)
    assert launcher.take() == ["follow G3 in 1, stays"]
    assert not third.has_followers


def test_no_more_is_queued_than_the_process_may_run_ahead(monkeypatch):
    monkeypatch.setattr(module, "_QUEUE_LENGTH", 2)
    launcher = FakeLauncher()
    schedule = scheduler(launcher, ["G1", "G2", "G3", "G4"], overlaps=True)
    first = schedule.begin("G1", "G2")
    queued = ["queue G2 in 1, stays before G3", "queue G3 in 1, stays before G4"]
    assert launcher.take() == ["start G1 in 1, stays before G2", *queued]
    passes(schedule, first, continues=True)
    schedule.begin("G2", "G3")
    assert launcher.take() == ["follow G2 in 1, stays before G3", "queue G4 in 1, stays"]


def test_no_more_is_queued_than_the_connection_takes():
    launcher = FakeLauncher()
    launcher.room = 1
    schedule = scheduler(launcher, ["G1", "G2", "G3"], overlaps=True)
    first = schedule.begin("G1", "G2")
    assert launcher.take() == ["start G1 in 1, stays before G2", "queue G2 in 1, stays before G3"]
    launcher.room = 1
    passes(schedule, first, continues=True)
    schedule.begin("G2", "G3")
    assert launcher.take() == ["follow G2 in 1, stays before G3", "queue G3 in 1, stays"]


def test_a_test_with_a_process_of_its_own_ends_the_queue():
    launcher = FakeLauncher()
    schedule = scheduler(launcher, ["G1", "G2", "a", "G3"], overlaps=True)
    schedule.begin("G1", "G2")
    assert launcher.take() == ["start G1 in 1, stays before G2", "queue G2 in 1, stays before G3"]


def test_a_queued_test_that_the_process_did_not_continue_with_is_sent_again():
    launcher = FakeLauncher()
    schedule = scheduler(launcher, ["G1", "G2"], overlaps=True)
    passes(schedule, schedule.begin("G1", "G2"), continues=False)
    launcher.take()
    assert not schedule.begin("G2", None).has_followers
    assert launcher.take() == ["send G2 in 1, stays"]


def test_a_test_begins_early_where_a_process_is_ready():
    launcher = FakeLauncher()
    schedule = scheduler(launcher, ["a", "b"], overlaps=True)
    ends(schedule, schedule.begin("a", "b"))
    schedule.start_early("b")
    assert launcher.take() == ["start a in 1", "prewarm b", "release 1", "start b in 2"]
    assert schedule.begin("b", None).process == 2
    assert launcher.take() == []


@pytest.mark.parametrize("reason", ["no process is ready", "overlapping is off"])
def test_a_test_does_not_begin_early_when(reason):
    launcher = FakeLauncher()
    launcher.ready = reason != "no process is ready"
    schedule = scheduler(launcher, ["a", "b"], overlaps=reason != "overlapping is off")
    ends(schedule, schedule.begin("a", "b"))
    launcher.take()
    schedule.start_early("b")
    assert launcher.take() == []


def test_a_group_does_not_begin_early_when_the_order_is_not_known():
    launcher = FakeLauncher()
    schedule = scheduler(launcher, None, overlaps=True)
    ends(schedule, schedule.begin("a", "G1"))
    launcher.take()
    schedule.start_early("G1")
    assert launcher.take() == []


def test_a_test_begun_early_that_was_not_the_next_is_killed():
    launcher = FakeLauncher()
    schedule = scheduler(launcher, ["a", "b", "c"], overlaps=True)
    ends(schedule, schedule.begin("a", "b"))
    schedule.start_early("b")
    launcher.take()
    schedule.begin("c", None)
    assert launcher.take() == ["kill 2", "start c in 3"]


@pytest.mark.parametrize(
    ("state", "expected"), [("running", ["kill 1"]), ("waiting", ["finish 1"]), ("ended", []), ("early", ["kill 1"])]
)
def test_nothing_is_left_when_all_is_dropped(state, expected):
    launcher = FakeLauncher()
    schedule = scheduler(launcher, ["G1", "G2"], overlaps=state == "early")
    active = schedule.begin("G1", "G2")
    if state == "waiting":
        passes(schedule, active)
    elif state == "ended":
        ends(schedule, active)
    elif state == "early":
        passes(schedule, active, continues=True)
    launcher.take()
    schedule.drop_all()
    assert launcher.take() == expected
    schedule.drop_all()
    assert launcher.take() == [], "dropped once"


@pytest.mark.parametrize(("next_item", "kept"), [("G2", True), ("own", True), ("H1", False), (None, False)], ids=str)
def test_an_unknown_order_is_judged_by_the_next_test(next_item, kept):
    """Fixtures are kept for it, or all of them torn down. The process ends when another group begins."""
    launcher = FakeLauncher()
    schedule = scheduler(launcher, None)
    passes(schedule, schedule.begin("G1", next_item))
    assert launcher.calls[0] == "start G1 in 1, stays" + (f" before {next_item}" if kept else "")
    assert "finish 1" not in launcher.calls


def test_pytests_word_on_the_next_test_beats_the_known_order():
    """With ``--reruns`` pytest asks for the same test again."""
    launcher = FakeLauncher()
    schedule = scheduler(launcher, ["G1", "H1"])
    schedule.begin("G1", "G1")
    assert launcher.take() == ["start G1 in 1, stays before G1"]


def test_a_waiting_process_that_died_with_its_parent_is_replaced():
    launcher = FakeLauncher()
    schedule = scheduler(launcher, ["G1", "own", "G2"])
    passes(schedule, schedule.begin("G1", "own"))
    ends(schedule, schedule.begin("own", "G2"))
    launcher.take()
    launcher.lost.add(1)
    schedule.begin("G2", None)
    assert launcher.take()[:2] == ["release 1", "start G2 in 3, stays"]

"""Decides which process runs which test, and when. Starts nothing itself: a ``Launcher`` does."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pytest

from pytest_rlstability.session.lane import Action, Event, Lane, State
from pytest_rlstability.session.supervisor import ActiveRun

_QUEUE_LENGTH = 64
"""Tests that a process is sent in advance: enough for what it runs while pytest's process is busy otherwise."""


@dataclass(frozen=True)
class Place:
    """What comes after a test: the *next_item*, which decides what pytest tears down, and whether the process *stays*.
    One that several tests share stays after the last of them too, and ends when it is told to."""

    next_item: pytest.Item | None = None
    stays: bool = False


class Launcher(Protocol):
    """What the scheduler needs to have its decisions carried out."""

    def group_of(self, item: pytest.Item) -> Hashable | None:
        """The tests that share a process have the same group; None: a process of its own, or not ours to run."""

    def can_start_early(self, item: pytest.Item) -> bool:
        """Whether a process is ready for *item*, and nothing about it asks to wait."""

    def start(self, item: pytest.Item, place: Place) -> ActiveRun:
        """Take a new process and have it run *item*."""

    def send(self, before: ActiveRun, item: pytest.Item, place: Place) -> ActiveRun:
        """Have the process of *before*, which waits, run *item*."""

    def can_queue(self, active: ActiveRun) -> bool:
        """Whether the connection of *active*'s process takes one more message that the process does not read yet."""

    def send_queued(self, active: ActiveRun, item: pytest.Item, place: Place) -> None:
        """Tell the process of *active* to run *item* next, if the test that it runs passes."""

    def follow_queued(self, before: ActiveRun, item: pytest.Item, place: Place) -> ActiveRun:
        """The run of *item*, with which the process of *before* has continued."""

    def prewarm(self, item: pytest.Item) -> None:
        """Have processes prepared for *item* while something else goes on."""

    def is_lost(self, active: ActiveRun) -> bool:
        """Whether the process of *active*, which waits, died with its parent, and not by what a test did."""

    def release(self, active: ActiveRun) -> None:
        """Forget a process that has ended."""

    def finish(self, active: ActiveRun) -> None:
        """Let a process that waits for a test tear down and end, and handle how it ended."""

    def kill(self, active: ActiveRun) -> None:
        """Kill a process in the middle of its test."""


class Scheduler:
    """``begin`` a test, supervise it, ``finish`` it. ``start_early`` for the one after it.

    *order* is the order in which pytest will ask for tests, if that is known. *overlaps* says whether a test may run
    before pytest asks for it.
    """

    def __init__(self, launcher: Launcher, order: Sequence[pytest.Item] | None, *, overlaps: bool) -> None:
        self._launcher = launcher
        self._overlaps = overlaps
        self._lanes: dict[Hashable | None, Lane] = {}
        self._next: dict[pytest.Item, pytest.Item | None] = {}
        self._stays: dict[pytest.Item, pytest.Item] = {}
        """The tests whose process stays for another one, with the next test that it runs."""
        if order is not None:
            self._learn_order(order)

    def begin(self, item: pytest.Item, next_item: pytest.Item | None) -> ActiveRun:
        """The run of *item*, begun now unless it was begun early."""
        lane = self._lane(item)
        if lane.state is State.IDLE and self._launcher.is_lost(lane.active):
            self._leave(lane, Event.ENDED)
        self._drop_others(lane, item)
        place = self._place(item, next_item)
        self._run(lane, Event.ASK, item, place)
        if next_item is not None:
            if place.next_item is None or self._lane(next_item) is not lane:
                self._launcher.prewarm(next_item)
            elif self._overlaps and self._next.get(item) is next_item:
                self._fill_queue(lane, item)
        lane.active.has_followers = bool(lane.queued)
        return lane.active

    def _fill_queue(self, lane: Lane, item: pytest.Item) -> None:
        last = lane.queued[-1] if lane.queued else item
        while len(lane.queued) < _QUEUE_LENGTH and self._launcher.can_queue(lane.active):
            following = self._next[last] if last in self._stays else None
            if following is None or self._lane(following) is not lane:
                return
            self._run(lane, Event.QUEUE, following, self._known_place(following))
            lane.queued.append(following)
            last = following

    def start_early(self, item: pytest.Item) -> None:
        """Begin *item*, the next one that pytest will ask for, if nobody would notice."""
        lane = self._lane(item)
        if not self._overlaps or (lane.shared and item not in self._next):
            return
        if lane.state is State.IDLE or (lane.state is State.EMPTY and self._launcher.can_start_early(item)):
            self._run(lane, Event.START_EARLY, item, self._known_place(item))

    def finish(self, active: ActiveRun) -> None:
        """The run is over: keep its process for the next test of its lane, or forget it."""
        lane = next(lane for lane in self._lanes.values() if lane.state is not State.EMPTY and lane.active is active)
        done = active.run.seen.done
        if active.run.ending.exit is not None:
            self._leave(lane, Event.ENDED)
        elif lane.queued and done is not None and done.continues:
            queued = lane.queued.popleft()
            self._run(lane, Event.CONTINUED, queued, self._known_place(queued))
        else:
            self._leave(lane, Event.WAITS)
            if self._next and active.item not in self._stays:
                self._leave(lane, Event.DROP)  # that was the last test of its group

    def drop_all(self) -> None:
        """End every process: no more tests will come, or the next one must not have company."""
        for lane in self._lanes.values():
            if lane.state is not State.EMPTY:
                self._leave(lane, Event.DROP)

    def _run(self, lane: Lane, event: Event, item: pytest.Item, place: Place) -> None:
        action = lane.step(event)
        try:
            match action:
                case Action.START:
                    lane.active = self._launcher.start(item, place)
                case Action.SEND:
                    lane.active = self._launcher.send(lane.active, item, place)
                case Action.SEND_QUEUED:
                    self._launcher.send_queued(lane.active, item, place)
                case Action.FOLLOW_QUEUED:
                    lane.active = self._launcher.follow_queued(lane.active, item, place)
        except BaseException:
            lane.state = State.EMPTY  # the launcher has killed the process
            lane.queued.clear()
            raise

    def _leave(self, lane: Lane, event: Event) -> None:
        lane.queued.clear()
        match lane.step(event):
            case Action.RELEASE:
                self._launcher.release(lane.active)
            case Action.FINISH:
                self._launcher.finish(lane.active)
            case Action.KILL:
                self._launcher.kill(lane.active)

    def _lane(self, item: pytest.Item) -> Lane:
        group = self._launcher.group_of(item)
        return self._lanes.setdefault(group, Lane(shared=group is not None))

    def _drop_others(self, lane: Lane, item: pytest.Item) -> None:
        """End what is in the way of *item*: a test begun early that was not the next one after all, and the process of
        another group, which has no more tests. A test with a process of its own leaves a group's process alone."""
        for other in self._lanes.values():
            begun_early = other.state is State.OVERLAPPED and other.active.item is not item
            if begun_early or (other is not lane and other.state is State.IDLE and lane.shared):
                self._leave(other, Event.DROP)

    # the order of tests

    def _learn_order(self, order: Sequence[pytest.Item]) -> None:
        """Whose process stays: the next test that shares any process shares the same one."""
        next_item: pytest.Item | None = None
        next_shared: pytest.Item | None = None
        next_group: Hashable | None = None
        for item in reversed(order):
            group = self._launcher.group_of(item)
            if group is not None:
                if next_shared is not None and group == next_group:
                    self._stays[item] = next_shared
                next_shared, next_group = item, group
            self._next[item] = next_item
            next_item = item

    def _known_place(self, item: pytest.Item) -> Place:
        return Place(self._stays.get(item), stays=self._launcher.group_of(item) is not None)

    def _place(self, item: pytest.Item, next_item: pytest.Item | None) -> Place:
        """What comes after *item*, where *next_item* is what pytest will ask for next."""
        if item in self._next and self._next[item] is next_item:
            return self._known_place(item)
        group = self._launcher.group_of(item)
        if group is None:
            return Place()
        goes_on = next_item is not None and self._launcher.group_of(next_item) in (None, group)
        return Place(next_item if goes_on else None, stays=True)

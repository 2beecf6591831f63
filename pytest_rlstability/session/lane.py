"""The state of one process that runs tests one after another, as a table of states and transitions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

import pytest

from pytest_rlstability.session.supervisor import ActiveRun


class State(Enum):
    EMPTY = "there is no process"
    RUNNING = "the process runs the test that pytest asked for"
    OVERLAPPED = "the process runs a test that pytest has not asked for yet"
    IDLE = "the process waits for its next test"


class Event(Enum):
    ASK = "pytest asks for a test"
    START_EARLY = "a test may start before pytest asks for it"
    QUEUE = "a test that follows may be sent while this one runs"
    CONTINUED = "the test is over, and the process runs the first queued one"
    WAITS = "the test is over, and the process waits for the next"
    ENDED = "the process has ended"
    DROP = "the process is not wanted any more"


class Action(Enum):
    START = "take a new process and send it the test"
    SEND = "send the waiting process the test"
    SEND_QUEUED = "send the process a test that follows"
    FOLLOW_QUEUED = "watch the queued test, which is running"
    HAND_OUT = "give out the run that is under way"
    KEEP = "keep the process for the next test"
    RELEASE = "forget the process"
    FINISH = "let the process tear down and end"
    KILL = "kill the process"


TRANSITIONS: dict[tuple[State, Event], tuple[State, Action]] = {
    (State.EMPTY, Event.ASK): (State.RUNNING, Action.START),
    (State.EMPTY, Event.START_EARLY): (State.OVERLAPPED, Action.START),
    (State.IDLE, Event.ASK): (State.RUNNING, Action.SEND),
    (State.IDLE, Event.START_EARLY): (State.OVERLAPPED, Action.SEND),
    (State.OVERLAPPED, Event.ASK): (State.RUNNING, Action.HAND_OUT),
    (State.RUNNING, Event.QUEUE): (State.RUNNING, Action.SEND_QUEUED),
    (State.RUNNING, Event.CONTINUED): (State.OVERLAPPED, Action.FOLLOW_QUEUED),
    (State.RUNNING, Event.WAITS): (State.IDLE, Action.KEEP),
    (State.RUNNING, Event.ENDED): (State.EMPTY, Action.RELEASE),
    (State.IDLE, Event.ENDED): (State.EMPTY, Action.RELEASE),
    (State.IDLE, Event.DROP): (State.EMPTY, Action.FINISH),
    (State.OVERLAPPED, Event.DROP): (State.EMPTY, Action.KILL),
    (State.RUNNING, Event.DROP): (State.EMPTY, Action.KILL),
}


class TransitionError(Exception):
    """An event that cannot happen in this state: an error of ours."""


@dataclass
class Lane:
    """One process at a time, and what it does. The tests of a group share a lane; all others use one in turn."""

    shared: bool
    state: State = State.EMPTY
    active: ActiveRun = field(init=False)
    """The run that the process has under way, or the last that it had. Not set before the first."""
    queued: deque[pytest.Item] = field(default_factory=deque)
    """Tests that the process has been sent and runs after the active one, as long as all pass."""

    def step(self, event: Event) -> Action:
        """Enter the next state; what is to be done for it."""
        try:
            self.state, action = TRANSITIONS[self.state, event]
        except KeyError:
            raise TransitionError(f"{event.name} in state {self.state.name}") from None
        return action

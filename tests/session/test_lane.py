"""Every transition of a process that runs tests, and nothing but these."""

from __future__ import annotations

import itertools

import pytest

from pytest_rlstability.session.lane import TRANSITIONS, Action, Event, Lane, State, TransitionError

# One line a transition, written out again: a change of the table must be meant.
TABLE = """
EMPTY      ASK         RUNNING    START
EMPTY      START_EARLY OVERLAPPED START
IDLE       ASK         RUNNING    SEND
IDLE       START_EARLY OVERLAPPED SEND
IDLE       ENDED       EMPTY      RELEASE
IDLE       DROP        EMPTY      FINISH
OVERLAPPED ASK         RUNNING    HAND_OUT
OVERLAPPED DROP        EMPTY      KILL
RUNNING    QUEUE       RUNNING    SEND_QUEUED
RUNNING    CONTINUED   OVERLAPPED FOLLOW_QUEUED
RUNNING    WAITS       IDLE       KEEP
RUNNING    ENDED       EMPTY      RELEASE
RUNNING    DROP        EMPTY      KILL
"""
ROWS = [tuple(line.split()) for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize(("state", "event", "after", "action"), ROWS, ids=lambda word: word)
def test_every_transition(state, event, after, action):
    lane = Lane(shared=True, state=State[state])
    assert lane.step(Event[event]) is Action[action]
    assert lane.state is State[after]


ALLOWED = {(State[state], Event[event]) for state, event, _, _ in ROWS}


@pytest.mark.parametrize(
    ("state", "event"),
    [pair for pair in itertools.product(State, Event) if pair not in ALLOWED],
    ids=lambda value: value.name,
)
def test_every_other_event_is_an_error_and_changes_nothing(state, event):
    lane = Lane(shared=True, state=state)
    with pytest.raises(TransitionError, match=f"{event.name} in state {state.name}"):
        lane.step(event)
    assert lane.state is state


def test_every_state_can_be_reached_and_left():
    assert {after for after, _ in TRANSITIONS.values()} == set(State)
    assert {before for before, _ in TRANSITIONS} == set(State)
    assert {action for _, action in TRANSITIONS.values()} == set(Action)

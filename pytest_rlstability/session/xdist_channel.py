"""Sends events from a pytest-xdist worker to its controller at once, and not only with the test's report.

If xdist's internals are not those that ``compat`` knows, the channel stays closed, and events travel with the reports.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pytest_rlstability.compat.plugins import receive_worker_event, send_worker_event
from pytest_rlstability.model.events import Event, from_json, to_line

_EVENT = "rlstability"
_OPEN = "rl_channel"


def open_at_controller(node: Any, handle: Callable[[Event], None]) -> None:
    """Have *handle* called with the events of the worker behind *node*, which is about to be started."""

    def receive(text: str) -> None:
        if (event := from_json(json.loads(text))) is not None:
            handle(event)

    if receive_worker_event(node, _EVENT, receive):
        node.workerinput[_OPEN] = True


def send_to_controller(config: pytest.Config, event: Event) -> bool:
    """Send *event* from a worker; False where the channel is closed."""
    is_open = getattr(config, "workerinput", {}).get(_OPEN)
    return bool(is_open) and send_worker_event(config, _EVENT, to_line(event))

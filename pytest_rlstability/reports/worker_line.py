"""Words from a pytest-xdist worker to its controller, at once: without it they would wait for the test's report.

pytest-xdist has no such line for plugins. The controller's end takes our own kind of event out of what a worker sends,
and queues it as xdist queues its own, so that it is heard in the main thread. Where xdist is not as we know it the
line stays shut, and the words travel with the reports.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pytest_rlstability.isolation.wire import printable

_EVENT = "rlstability"
_OPEN = "rl_line"
Words = Mapping[str, Any]


def open_at_controller(node: Any, hear: Callable[[Words], None]) -> None:
    """Let *hear* have the words of the worker behind *node*, which is about to be started."""
    session = node.config.pluginmanager.getplugin("dsession")
    take_others = getattr(node, "process_from_remote", None)
    if session is None or take_others is None or not hasattr(node, "notify_inproc") or not hasattr(session, "queue"):
        return

    def take(sent: Any) -> None:
        if isinstance(sent, tuple) and sent[0] == _EVENT:
            node.notify_inproc(_EVENT, text=sent[1]["text"])
        else:
            take_others(sent)

    def worker_rlstability(text: str) -> None:
        hear(json.loads(text))

    node.process_from_remote = take
    session.worker_rlstability = worker_rlstability
    node.workerinput[_OPEN] = True


def say_to_controller(config: pytest.Config, words: Words) -> bool:
    """Send *words* from a worker; False where the line is shut."""
    if not getattr(config, "workerinput", {}).get(_OPEN):
        return False
    interactor: Any = next((one for one in config.pluginmanager.get_plugins() if hasattr(one, "sendevent")), None)
    if interactor is None:
        return False
    interactor.sendevent(_EVENT, text=json.dumps(words, default=printable))
    return True

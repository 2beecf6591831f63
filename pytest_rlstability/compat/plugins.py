"""What is private of pytest-timeout, pytest-xdist and coverage. None of them is imported here.

Seen in pytest-timeout 2.4, pytest-xdist 3.8 and coverage 7.17.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def timeout_settings(item: pytest.Item) -> Any:
    """What pytest-timeout's marker, flag and ini ask for *item*: ``timeout``, ``method``, ``func_only``; None where the
    plugin is switched off. Without it no test runs in a process of its own."""
    plugin = item.config.pluginmanager.getplugin("timeout")
    return None if plugin is None else plugin._get_item_settings(item)


def redirect_coverage(measurement: Any, file: str) -> None:
    """Have *measurement*, a ``Coverage`` that may have been forked, save to *file* and not where its parent saves.
    Without it the lines that a forked test ran are lost."""
    measurement._data._basename, measurement._data._suffix = file, None


def receive_worker_event(node: Any, event: str, handle: Callable[[str], None]) -> bool:
    """In xdist's controller, before the worker behind *node* starts: call *handle*, in the main thread, with each text
    that ``send_worker_event`` sends in it. False where xdist is not as it was seen.

    pytest-xdist has no such channel for plugins. This uses how ``DSession`` takes events from its queue, and how it
    names the methods that it calls. Without it a worker's events wait for the reports of its tests.
    """
    session = node.config.pluginmanager.getplugin("dsession")
    take_others = getattr(node, "process_from_remote", None)
    if session is None or take_others is None or not hasattr(node, "notify_inproc") or not hasattr(session, "queue"):
        return False

    def take(sent: Any) -> None:
        if isinstance(sent, tuple) and sent[0] == event:
            node.notify_inproc(event, text=sent[1]["text"])
        else:
            take_others(sent)

    node.process_from_remote = take
    setattr(session, f"worker_{event}", lambda text: handle(text))
    return True


def send_worker_event(config: pytest.Config, event: str, text: str) -> bool:
    """In an xdist worker: send *text* to what ``receive_worker_event`` was given. False where that is not possible.
    Without it a worker's events wait for the reports of its tests."""
    interactor: Any = next((one for one in config.pluginmanager.get_plugins() if hasattr(one, "sendevent")), None)
    if interactor is None:
        return False
    interactor.sendevent(event, text=text)
    return True

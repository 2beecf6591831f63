"""What is private of pytest-timeout, pytest-xdist, execnet, coverage, pytest-rerunfailures and allure-pytest. None of
them is imported here.

Seen in pytest-timeout 2.4, pytest-xdist 3.8, execnet 2.1, coverage 7.17, pytest-rerunfailures 16.7, allure-pytest 2.16.
"""

from __future__ import annotations

import copy
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def timeout_settings(item: pytest.Item) -> Any:
    """What pytest-timeout's marker, flag and ini ask for *item*: ``timeout``, ``method``, ``func_only``; None where the
    plugin is switched off. Without it no test runs in a process of its own."""
    plugin = item.config.pluginmanager.getplugin("timeout")
    return None if plugin is None else plugin._get_item_settings(item)


def allowed_reruns(item: pytest.Item, failure: str) -> int:
    """How often pytest-rerunfailures may repeat *item* after *failure*, a text like ``Type: message``; 0 without the
    plugin. Without it a test whose process died is not repeated."""
    plugin = _rerunfailures(item)
    if plugin is None or not plugin.get_reruns_condition(item):
        return 0
    only, never = (item.config.getoption(name, None) or [] for name in ("only_rerun", "rerun_except"))
    if any(re.search(pattern, failure) for pattern in never):
        return 0
    if only and not any(re.search(pattern, failure) for pattern in only):
        return 0
    return int(plugin.get_reruns_count(item) or 0)


def _rerunfailures(item: pytest.Item) -> Any:
    """By its entry point, or as ``-p`` names it."""
    manager = item.config.pluginmanager
    return manager.getplugin("rerunfailures") or manager.getplugin("pytest_rerunfailures")


def rerun_delay(item: pytest.Item, attempts: int) -> float:
    """Seconds to wait before *item* is repeated after so many *attempts*. Without it no such test is."""
    plugin = _rerunfailures(item)
    factor = getattr(plugin, "get_reruns_delay_backoff_factor", lambda item: 1.0)(item)
    return float(plugin.get_reruns_delay(item)) * factor ** (attempts - 1)


def count_attempts(config: pytest.Config, nodeid: str, attempts: int) -> None:
    """Have pytest-rerunfailures know of *attempts* that were made in other processes. Without it a test whose process
    died is repeated too often."""
    database: Any = getattr(config, "failures_db", None)
    if database is not None:
        database.get_test_failures = lambda of: attempts if of == nodeid else 0


def drop_allure_result(listener: Any, item: pytest.Item) -> None:
    """Have allure-pytest's *listener* forget the result that it has begun for *item*. Without it every test has two."""
    identifier = listener._cache.pop(item.nodeid)
    if identifier is not None:
        listener.allure_logger.drop_test(identifier)


def set_allure_message(listener: Any, item: pytest.Item, text: str) -> None:
    """Have the result of *item* begin with *text*, not with the name of an exception. Without it no crash is there."""
    listener.allure_logger.get_test(listener._cache.get(item.nodeid)).statusDetails.message = text


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


@contextmanager
def reporting_for(config: pytest.Config, nodeid: str) -> Iterator[None]:
    """In an xdist worker: let a report of *nodeid* through although another test is running. xdist asserts that every
    report is one of the running test. Without it a test that is blamed after its end gets no report."""
    interactor: Any = next((one for one in config.pluginmanager.get_plugins() if hasattr(one, "item_index")), None)
    index = None
    if interactor is not None and interactor.session.items[interactor.item_index].nodeid != nodeid:
        nodeids = (item.nodeid for item in interactor.session.items)
        index = next((number for number, one in enumerate(nodeids) if one == nodeid), None)
    if index is None:
        yield
        return
    running, interactor.item_index = interactor.item_index, index
    try:
        yield
    finally:
        interactor.item_index = running


def close_when_silent(gateway: Any, seconds: int) -> None:
    """Have the connection of a ``socket=`` gateway break when its host has been silent for so long. Without it execnet
    waits for a host that has vanished until the run is killed."""
    connection = getattr(getattr(gateway, "_io", None), "sock", None)
    if not isinstance(connection, socket.socket):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", seconds // 3),
        ("TCP_KEEPINTVL", seconds // 3),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", seconds * 1000),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def replace_workers_elsewhere(config: pytest.Config, tell: Callable[[str], None]) -> bool:
    """In xdist's controller: where the host of a lost worker cannot be reached, start its replacement on the host that
    has the fewest workers. False where xdist is not as it was seen.

    xdist starts it on the same host only, and an error there ends the run. Without it a host that vanishes does that.
    """
    session: Any = config.pluginmanager.getplugin("dsession")
    start_like: Any = getattr(session, "_clone_node", None)
    if start_like is None or not hasattr(session, "_active_nodes"):
        return False
    unreachable: set[tuple[object, ...]] = set()

    def start_somewhere(lost: Any) -> Any:
        workers = Counter(_host_of(node.gateway.spec) for node in session._active_nodes)
        specs = {_host_of(spec): spec for spec in [*session.nodemanager.specs, lost.gateway.spec]}
        own = _host_of(lost.gateway.spec)
        for host in sorted(specs.keys() - unreachable, key=lambda host: (host != own, workers[host])):
            # A copy: xdist gives it the id of the new worker.
            like = SimpleNamespace(gateway=SimpleNamespace(spec=copy.copy(specs[host])))
            try:
                started = start_like(like)
            except Exception as error:  # each kind of gateway raises its own
                unreachable.add(host)
                tell(f"{_name_of(specs[host])} cannot be reached: {type(error).__name__}")
            else:
                if host != own:
                    tell(f"{started.gateway.id} replaces {lost.gateway.id} on {_name_of(specs[host])}")
                return started
        return None

    session._clone_node = start_somewhere
    return True


def _host_of(spec: Any) -> tuple[object, ...]:
    """What two specifications of workers on the same host have in common."""
    return (spec.ssh, spec.vagrant_ssh, spec.socket, spec.via)


def _name_of(spec: Any) -> str:
    return next((str(name).split(" -o ")[0] for name in _host_of(spec) if name), "this machine")

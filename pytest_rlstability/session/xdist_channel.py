"""Sends events from a pytest-xdist worker to its controller at once, and not only with the test's report. Keeps the run
going when the host of a worker vanishes.

If xdist's internals are not those that ``compat`` knows, the channel stays closed, and events travel with the reports.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pytest_rlstability.compat.plugins import (
    receive_worker_event,
    replace_workers_elsewhere,
    send_worker_event,
)
from pytest_rlstability.model.events import Event, from_json, to_line
from pytest_rlstability.osinfo.process_control import wake_if_stopped
from pytest_rlstability.osinfo.processes import children_of

_EVENT = "rlstability"
_OPEN = "rl_channel"
SILENCE = 45
"""Seconds without a sign of life after which a host is lost."""
_LOOK = 2.0
"""Seconds from one look at the workers to the next."""
_SSH_LIMITS = f"-o ConnectTimeout=20 -o ServerAliveInterval={SILENCE // 3} -o ServerAliveCountMax=2"


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


class StoppedWorkers:
    """A plugin of the controller: wakes workers that somebody has stopped. xdist would wait for them without end, and
    execnet for one that has only begun to start."""

    def __init__(self) -> None:
        self._over = threading.Event()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if session.config.pluginmanager.hasplugin("dsession"):
            threading.Thread(target=self._look, name="rlstability-stopped-workers", daemon=True).start()

    def _look(self) -> None:
        while not self._over.wait(_LOOK):
            for pid in children_of(os.getpid()):
                wake_if_stopped(pid)

    def pytest_unconfigure(self) -> None:
        self._over.set()


def survive_lost_hosts(config: pytest.Config) -> None:
    """In the controller, before workers are started: end every wait for a host that has vanished, and go on without it.

    By default ssh, execnet and xdist wait without a limit. A user's own ssh options in ``--tx`` come first and win.
    """

    def tell(text: str) -> None:
        if (reporter := config.pluginmanager.getplugin("terminalreporter")) is not None:
            reporter.write_line(f"rl-stability: {text}")

    if config.pluginmanager.hasplugin("dsession"):
        replace_workers_elsewhere(config, tell)
        for option in ("tx", "px"):
            specs = config.getoption(option, None) or []
            setattr(config.option, option, [limit_ssh(spec) for spec in specs])


def limit_ssh(spec: str) -> str:
    """*spec* of ``--tx`` or ``--px``, with limits for ssh if it uses that."""
    return re.sub(r"(^|//|\*)(ssh=.*?)(?=//|$)", rf"\1\2 {_SSH_LIMITS}", spec)

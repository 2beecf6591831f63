"""A zygote in which wide fixtures are set up: tests with a process of their own are forked from it and share them."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from os import _exit  # bound here: a fixture may replace it

import pytest

from pytest_rlstability.child.coverage import save_coverage
from pytest_rlstability.child.output import capturing
from pytest_rlstability.compat.cpython import drop_exit_callbacks, run_exit_callbacks
from pytest_rlstability.compat.pytest import set_up_wide_fixtures, tear_down
from pytest_rlstability.model.messages import FixturesTornDown, StartProcess
from pytest_rlstability.osinfo.descriptors import own_descriptors
from pytest_rlstability.osinfo.linux import descriptor_target, own_threads
from pytest_rlstability.osinfo.process_control import die_with_parent
from pytest_rlstability.osinfo.processes import children_of
from pytest_rlstability.parent.loop import ProcessParent

if sys.platform == "linux":
    from pytest_rlstability.parent.zygote import Zygote

assert sys.platform == "linux"

_PYTEST_DIED = signal.SIGRTMIN + 6


class UnsafeFixturesError(Exception):
    """Wide fixtures that could not be set up here, or do not survive a fork."""


class FixtureZygote(Zygote):
    """Runs no test. Before each fork it sets up the wide fixtures of the test to come, as far as they are not yet."""

    _children: frozenset[int] = frozenset()
    """What the fixtures have started."""

    def _parent(self) -> ProcessParent:
        self._runner.keeps_wide_fixtures = True
        self._descriptors = frozenset(own_descriptors())
        parent = ProcessParent(
            self._connection, self._fork, self._endpoint, self._tear_down_all, keeps=lambda: self._children
        )

        def end(*_: object) -> None:
            parent.end_everything()
            _exit(0)

        # A fixture that hangs keeps the loop from noticing that pytest was killed.
        signal.signal(_PYTEST_DIED, end)
        die_with_parent(_PYTEST_DIED)
        return parent

    def _fork(self, order: StartProcess) -> int:
        assert order.fixtures_of is not None
        item = self._session.items[order.fixtures_of]
        self._tear_down(item)
        if reason := self._set_up(item):
            self._tear_down(None)  # each test sets them up for itself, and finds what they need free
            raise UnsafeFixturesError(reason)
        self._children = frozenset(children_of(os.getpid()))
        return super()._fork(order)

    def _set_up(self, item: pytest.Item) -> str:
        """Set up the wide fixtures of *item*; why they cannot be used in a forked process, if so."""
        try:
            with capturing(item.config):
                set_up_wide_fixtures(item)
        except (Exception, pytest.skip.Exception, pytest.fail.Exception) as error:
            return f"their set-up raises {type(error).__name__}"
        return next(self._reasons_against_fork(), "")

    def _prepare_test(self) -> None:
        signal.signal(_PYTEST_DIED, signal.SIG_DFL)
        drop_exit_callbacks()  # what the fixtures registered is not for the test's process to call
        self._runner.note_inherited()

    def _tear_down_all(self) -> None:
        self._tear_down(None)
        with capturing(self._session.config):
            run_exit_callbacks()  # those that the fixtures have registered
        save_coverage(self._endpoint.directory)
        self._connection.send(FixturesTornDown())

    def _tear_down(self, next_item: pytest.Item | None) -> None:
        """Tear down what *next_item* does not need. An error there belongs to the tests that came before."""
        try:
            with capturing(self._session.config):
                tear_down(self._session, next_item)
        except Exception:
            self._connection.send(FixturesTornDown(traceback.format_exc()))

    def _reasons_against_fork(self) -> Iterator[str]:
        """Why the fixtures as they are now would not work in a forked process."""
        if len(own_threads()) > 1:
            yield "they start threads"
        multiprocessing = sys.modules.get("multiprocessing.process")
        if multiprocessing is not None and multiprocessing.active_children():
            yield "they start multiprocessing workers"
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            yield "they use CUDA"
        for name in frozenset(own_descriptors()) - self._descriptors:
            target = descriptor_target("self", name)
            if "eventpoll" in target:
                yield "they have an event loop"
            elif target.startswith("socket:") and _is_connected(int(name)):
                yield "they hold a connection"
            elif _is_database(target):
                yield "they hold an SQLite database open"


def _is_connected(descriptor: int) -> bool:
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        return bool(connection.getpeername() or connection.family == socket.AF_UNIX)
    return False


def _is_database(path: str) -> bool:
    with suppress(OSError, ValueError), open(path, "rb") as file:
        return file.read(15) == b"SQLite format 3"
    return False

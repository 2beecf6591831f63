"""The zygote: a copy of pytest's process, made after collection and before the first test, that never runs anything
itself. Every test is forked from it and so starts from the same clean state, whatever ran before."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from os import _exit  # bound here: a test may replace it
from typing import NoReturn

import pytest

from pytest_rlstability.child.gc_freeze import freeze_until_asked
from pytest_rlstability.child.link import Link
from pytest_rlstability.child.runner import TestRunner
from pytest_rlstability.compat.cpython import drop_exit_callbacks
from pytest_rlstability.model.messages import InternalError, StartProcess
from pytest_rlstability.osinfo.endpoint import Endpoint
from pytest_rlstability.osinfo.fork_safety import ThreadsAtStart
from pytest_rlstability.osinfo.process_control import die_with_parent
from pytest_rlstability.parent.loop import ProcessParent, connect_parent

if sys.platform == "linux":
    from pytest_rlstability.parent.cow_prefault import PagePrefault

assert sys.platform == "linux"

NOT_PRELOADED = 72
"""Exit code of a zygote that a library has made unfit to be forked."""


class Zygote:
    """The parent of forked test processes. ``live()`` returns when the run is over."""

    def __init__(self, session: pytest.Session, endpoint: Endpoint, *, hold: bool, preload: Sequence[str] = ()) -> None:
        self._session = session
        self._endpoint = endpoint
        self._hold = hold
        self._preload = preload

    def live(self) -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._import_libraries()
        drop_exit_callbacks()
        directory = self._endpoint.directory
        self._runner = TestRunner(self._session, directory, hold=self._hold, finalizing=False)
        self._prefault = PagePrefault(directory)
        self._runner.before_end = self._prefault.learn
        self._collecting = gc.isenabled()
        gc.disable()
        freeze_until_asked()
        self._connection = connect_parent(self._endpoint)
        self._parent().serve()

    def _import_libraries(self) -> None:
        """Ends this process if a library starts threads: the next zygote is then made without any of them."""
        threads = ThreadsAtStart()
        for name in self._preload:
            with suppress(Exception):
                import_module(name)
            if threads.reason_against_fork():
                _exit(NOT_PRELOADED)

    def _parent(self) -> ProcessParent:
        return ProcessParent(self._connection, self._fork, self._endpoint)

    def _fork(self, order: StartProcess) -> int:
        self._prefault.refresh()
        pid = os.fork()
        if pid == 0:
            run_and_exit(lambda: self._become_test(order))
        return pid

    def _become_test(self, order: StartProcess) -> None:
        self._prefault.prepare()
        os.setsid()
        die_with_parent()
        self._connection.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if order.canary:
            use_native_threads()
            return
        self._prepare_test()
        link = Link.open(self._endpoint, order.serial)
        self._runner.attach(link)
        if self._collecting:
            gc.enable()
        try:
            self._runner.work(lambda index: self._session.items[int(index)])
        except BaseException:
            link.messages.send(InternalError(traceback.format_exc()))
            raise

    def _prepare_test(self) -> None:
        """Called first in each new test process."""


def use_native_threads() -> None:
    """Run a parallel region in each numeric library that is loaded. After an unsafe fork it never returns."""
    if torch := sys.modules.get("torch"):
        matrix = torch.ones(400, 400)
        (matrix @ matrix).sum().item()
    if numpy := sys.modules.get("numpy"):
        square = numpy.ones((400, 400))
        (square @ square).sum()


def run_and_exit(work: Callable[[], None]) -> NoReturn:
    """Run *work* and end this process, without the end of the interpreter. In a forked process nothing of the parent's
    stack is returned to."""
    code = 0
    try:
        work()
    except BaseException:
        code = 70
        traceback.print_exc()
    finally:
        _exit(code)

"""Guards collection: a module that crashes or hangs while it is imported fails, and the other tests run.

Test modules and conftests are imported in pytest's own process. Before collection it forks a *standby*, a copy of
itself that waits and watches (``standby``). As long as nothing goes wrong that is all: the original imports
every module once, and the standby ends with collection. When the original crashes, exits or stands still, it is held
where it is, and a copy of the standby, which has imported no module yet, collects again without the one at fault and
runs the tests. The original is the process that the shell waits for. It exits when that copy has ended.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import warnings
from collections.abc import Generator
from contextlib import suppress
from typing import NoReturn

import pytest

from pytest_rlstability.child.crash_handlers import CrashHandlers
from pytest_rlstability.compat.pytest import crash_output
from pytest_rlstability.config.options import Settings
from pytest_rlstability.osinfo.fatal_signals import FATAL_SIGNALS, default_fatal_signals, exit_with_failure_on_signal
from pytest_rlstability.session.collection.failed_imports import FailedImports
from pytest_rlstability.session.collection.link import COLLECTOR, STANDBY, CollectedNode, Lines, fork
from pytest_rlstability.session.collection.worker_imports import record_of

if sys.platform == "linux":
    from pytest_rlstability.session.collection.standby import Standby

assert sys.platform == "linux"

_EXIT_SIGNAL = signal.SIGRTMIN + 5
"""Ends a process that is held, with the exit status of failed tests."""


class CollectionGuard:
    """A plugin for the time of collection, in the process that collects."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._node = CollectedNode()
        self._guards = False

    def start(self) -> None:
        """Fork the standby. Returns in this process, and again in each copy that collects in its place. Where no more
        processes or descriptors are allowed, nothing is guarded."""
        try:
            lines, lifeline = Lines.open(), os.pipe()
        except OSError:
            return
        _flush(self._config)
        record = record_of(self._config)
        exit_signal = _EXIT_SIGNAL if exit_with_failure_on_signal(_EXIT_SIGNAL) else signal.SIGKILL
        standby = Standby(self._config, self._settings, self._node, lifeline, exit_signal, record)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # whether threads are lost was looked at
            if (pid := fork()) == 0:
                # A child of ours would be in the way of a module that waits for all its children.
                if (second := fork()) != 0:
                    os._exit(second is None)
                standby.be_kept(lines)
                lines = standby.stand_by(lines)
            elif pid is None or os.waitpid(pid, 0)[1]:
                lines.close(STANDBY)
                lines.close(COLLECTOR)
                os.close(lifeline[0])
                os.close(lifeline[1])
                return
        lines.close(STANDBY)
        os.close(lifeline[1])
        self._lines, self._lifeline = lines, lifeline[0]
        self._install()
        if standby.failures:
            self._config.pluginmanager.register(FailedImports(self._config, standby.failures))
        if (failed := standby.failures.get("")) is not None:
            self.stop()
            raise pytest.UsageError(failed.verdict.text() + "\n".join(failed.output.values()))

    def _install(self) -> None:
        self._pid, self._guards = os.getpid(), True
        self._had_faulthandler = faulthandler.is_enabled()
        self._handlers = CrashHandlers(hold=True)
        self._handlers.write_to(os.dup(self._lines.dump[COLLECTOR].fileno()))
        self._exit, os._exit = os._exit, self._exit_noticed
        os.register_at_fork(after_in_child=self._leave_fork_alone)
        self._node.nodeid = ""

    def stop(self) -> None:
        """Collection is over: end the standby, and put everything back."""
        self._stay_if_held()
        if not self._guards:
            return
        self._guards = False
        with suppress(BrokenPipeError):  # somebody has killed it
            os.write(self._lines.news[COLLECTOR], b"done")
        if os._exit == self._exit_noticed:
            os._exit = self._exit
        if self._handlers.undo() and self._had_faulthandler:
            faulthandler.enable(file=crash_output(self._config))
        for number in FATAL_SIGNALS:
            if callable(handler := signal.getsignal(number)):  # what modules have asked for
                signal.signal(number, handler)
        signal.signal(_EXIT_SIGNAL, signal.SIG_DFL)
        self._lines.close(COLLECTOR)
        os.close(self._lifeline)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        around, self._node.nodeid = self._node.nodeid, collector.nodeid or "."
        try:
            return (yield)
        finally:
            self._stay_if_held()
            self._node.nodeid = around

    def pytest_enter_pdb(self) -> None:
        """Somebody looks at it."""
        self.stop()

    def _exit_noticed(self, status: int) -> NoReturn:
        """In the place of ``os._exit``: the shell must not see this process end before the tests have run."""
        if self._guards and os.getpid() == self._pid:
            faulthandler.dump_traceback(self._lines.dump[COLLECTOR].fileno())
            os.write(self._lines.news[COLLECTOR], b"exit %d" % status)
            while True:
                signal.pause()
        self._exit(status)

    def _stay_if_held(self) -> None:
        """A signal may wake a process that is held. It must do nothing more."""
        while self._node.held == os.getpid():
            signal.pause()

    def _leave_fork_alone(self) -> None:
        """A process that a module forks crashes and exits as it always does."""
        if self._guards:
            self._guards = False
            self._handlers.undo()
            default_fatal_signals()
            signal.signal(_EXIT_SIGNAL, signal.SIG_DFL)


def _flush(config: pytest.Config) -> None:
    """What is in a buffer at a fork is written twice."""
    if (reporter := config.pluginmanager.getplugin("terminalreporter")) is not None:
        reporter.flush()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()

"""A copy of pytest's process that watches it collect, and takes over when that goes wrong."""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_rlstability.compat.pytest import GlobalCapture
from pytest_rlstability.config.options import Settings
from pytest_rlstability.model.events import Slow
from pytest_rlstability.model.run import Exit, Killed, Observed, Run, RunSpec
from pytest_rlstability.osinfo import linux
from pytest_rlstability.osinfo.fatal_signals import signal_name, signal_thread
from pytest_rlstability.osinfo.process_control import (
    die_with_parent,
    end_tree,
    exit_descriptor,
    kill_tree,
    send_signal,
    wake_if_stopped,
)
from pytest_rlstability.osinfo.processes import children_of, descendants_of, is_alive
from pytest_rlstability.session.collection.failed_imports import FailedImport
from pytest_rlstability.session.collection.link import COLLECTOR, STANDBY, CollectedNode, Lines, fork
from pytest_rlstability.session.connections import ProcessLinks
from pytest_rlstability.session.supervisor import Supervisor, WatchedRun
from pytest_rlstability.session.test_process import TestProcess
from pytest_rlstability.session.watchdogs import KillCondition
from pytest_rlstability.session.watchdogs.limits import HardLimit, HeldCrash
from pytest_rlstability.session.watchdogs.stall import StallWatch

assert sys.platform == "linux"

_RELEASE_LIMIT = 2.0
"""Seconds that the original has to exit when it is told to."""
_LOOK = 1.0
"""Seconds from one look at the copy that runs the tests to the next."""
_NOWHERE = Path(os.devnull)


class CollectorLink(ProcessLinks):
    """What arrives from a process that collects, until it is done or has ended. To the supervisor it is also that
    process's owner."""

    def __init__(self, process: TestProcess, lines: Lines, end: Callable[[TestProcess], None]) -> None:
        super().__init__()
        self._process = process
        self._news = lines.news[STANDBY]
        self.end = end
        self.collected = False
        dump = lines.dump[STANDBY]
        dump.setblocking(False)
        self._selector.register(dump, selectors.EVENT_READ, lambda: self._read_dump(process, dump))
        self._selector.register(self._news, selectors.EVENT_READ, self._read_news)

    def _read_news(self) -> None:
        match os.read(self._news, 64).split():
            case [b"done"]:
                self.collected, self._process.exit = True, Exit(0)
            case [b"exit", status]:
                self._process.exit = Exit(int(status))
        self._unwatch(self._news)

    def pids(self) -> list[int]:
        """Neither this process nor what the shell runs beside pytest belongs to the process that collects."""
        stat = linux.stat(self._process.pid)
        return [os.getpid(), *(() if stat is None else children_of(stat.parent))]


class HoldingCondition:
    """A kill condition. The process that it decides to end must not go on: the signal that asks for its stacks may wake
    it up."""

    def __init__(self, condition: KillCondition, node: CollectedNode) -> None:
        self._condition = condition
        self._node = node
        self.due = condition.due

    def check(self, process: TestProcess) -> Killed | None:
        killed = self._condition.check(process)
        self.due = self._condition.due
        if killed is not None:
            self._node.held = process.pid
        return killed


class Standby:
    """Waits in a copy of pytest's process that was made before collection. *failures* are the nodes that could not be
    collected."""

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        node: CollectedNode,
        lifeline: tuple[int, int],
        exit_signal: int,
        record: Path | None,
    ) -> None:
        self._config = config
        self._settings = settings
        self._node = node
        self._lifeline = lifeline
        self._exit_signal = exit_signal
        self._record = record
        """Where a worker's failure is written to. There is no copy of a worker: it would not have its threads."""
        self._original = self._collector = os.getpid()
        self._threads = threading.enumerate()
        self._keeper: int | None = None
        self.failures: dict[str, FailedImport] = {}

    def be_kept(self, lines: Lines) -> None:
        """Go on in a child. This process stays, wakes that up if somebody stops it, and says so if it is killed while
        others depend on it."""
        if not (standby := fork()):
            self._keeper = None if standby is None else os.getppid()
            return
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        lines.close(STANDBY)
        lines.close(COLLECTOR)
        for descriptor in self._lifeline:
            os.close(descriptor)
        while os.WIFSTOPPED(status := os.waitpid(standby, os.WUNTRACED)[1]):
            send_signal(standby, signal.SIGCONT)
        if os.WIFSIGNALED(status) and self._node.held:
            self._say(f"a process of this run was killed ({signal_name(os.WTERMSIG(status))}): its results are lost")
        os._exit(0)

    def stand_by(self, lines: Lines) -> Lines:
        """Watch the original. Returns in a copy of this process that is to collect, with the lines that it has."""
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            copy = self._watch_in_turn(lines)
        except BaseException:
            traceback.print_exc()
            copy = None
        if copy is None:
            self._release()
            self._exit()
        signal.signal(signal.SIGINT, interrupt)
        die_with_parent()
        self._say_what_happens()
        return copy

    def _watch_in_turn(self, lines: Lines) -> Lines | None:
        """Watch the original, then each copy that collects in its place. None when all is over."""
        while (failed := self._watch(lines)) is not None:
            if failed.nodeid in self.failures:
                return None
            self.failures[failed.nodeid] = failed
            if self._record is not None:
                self._record.write_text(json.dumps(failed.to_dict()))
                self._exit_signal = signal.SIGKILL
                return None
            self._forget_output()
            lines.close(STANDBY)
            lines = Lines.open()
            self._collector = os.fork()
            if self._collector == 0:
                return lines
            lines.close(COLLECTOR)
        return None

    def _watch(self, lines: Lines) -> FailedImport | None:
        """Why collecting failed; None when it is done, and the process that did it has ended."""
        process = self._process()
        run = Run(RunSpec("", "inprocess", self._settings.seed), Observed(pid=process.pid))
        link = CollectorLink(process, lines, self._end)
        self._notice_exits(link, process)
        supervisor = Supervisor(link, self._settings.native, lambda active, sample: None)
        watched = WatchedRun(owner=link, process=process, run=run, observers=[HeldCrash()])
        watched.kill_conditions = self._kill_conditions(link, supervisor)
        supervisor.supervise(watched)
        if link.collected:
            while self._collector != self._original:
                link.pump(_LOOK)
                wake_if_stopped(self._collector)
            return None
        self._end(process)
        run.spec = RunSpec(self._node.nodeid, "inprocess", self._settings.seed)
        return FailedImport.of(run, self._config.hook.pytest_rlstability_judge(run=run))

    def _process(self) -> TestProcess:
        captured = [Path(f"/proc/self/fd/{one}") for one in GlobalCapture(self._config).descriptors()]
        stdout, stderr = [*captured, _NOWHERE, _NOWHERE][:2]
        process = TestProcess(0, self._node.counters, stdout, stderr, pid=self._collector)
        process.thread_names = {one.ident: one.name for one in self._threads if one.ident is not None}
        process.inherited_threads = {one.native_id for one in self._threads[1:] if one.native_id is not None}
        process.own_signals = (self._exit_signal,)
        return process

    def _forget_output(self) -> None:
        """The report of the module that failed has what it wrote."""
        for descriptor in GlobalCapture(self._config).descriptors():
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)

    def _kill_conditions(self, link: CollectorLink, supervisor: Supervisor) -> list[KillCondition]:
        conditions: list[KillCondition] = []
        if self._settings.limit > 0:
            conditions.append(HardLimit("limit (--rl-limit)", self._settings.limit, _NOWHERE, phase="import"))
        if self._settings.stall_after > 0:
            conditions.append(
                StallWatch(
                    self._settings.stall_after,
                    _NOWHERE,
                    self._say_slow,
                    supervisor.sample,
                    native=self._settings.native,
                    strangers=link.pids,
                )
            )
        return [HoldingCondition(condition, self._node) for condition in conditions]

    def _say_slow(self, text: str) -> None:
        if (bus := self._config.pluginmanager.getplugin("rlstability-event-bus")) is not None:
            bus.emit(Slow(test=self._node.nodeid or "collection", text=text))

    def _say_what_happens(self) -> None:
        nodeid, failed = list(self.failures.items())[-1]
        if self._config.option.verbose >= 0:
            self._say(f"{nodeid}: {failed.verdict.title}; collecting again without it")

    def _say(self, text: str) -> None:
        if (reporter := self._config.pluginmanager.getplugin("terminalreporter")) is not None:
            reporter.write_line("")
            reporter.write_line(f"rl-stability: {text}", red=True)
            reporter.flush()

    # processes

    def _notice_exits(self, link: CollectorLink, process: TestProcess) -> None:
        if (original := exit_descriptor(self._original)) is not None:
            link.call_when_readable(original, lambda: self._original_died(process))
        elif not is_alive(self._original):
            self._original_died(process)
        if self._collector != self._original and (copy := exit_descriptor(self._collector)) is not None:
            link.call_when_readable(copy, lambda: self._copy_died(process))

    def _original_died(self, process: TestProcess) -> None:
        """Nobody waits for the tests any more, unless it is a worker."""
        if self._record is not None:
            process.exit = process.exit or Exit(linux.exit_status(self._original))
            return
        if self._collector != self._original:
            send_signal(self._collector, signal.SIGKILL)  # its own processes notice, and clean up
        else:
            at = self._node.nodeid
            self._say(f"pytest's process died in collection{at and f', of {at}'}")
        self._exit()

    def _copy_died(self, process: TestProcess) -> None:
        _, status = os.waitpid(self._collector, 0)
        if process.exit is not None and os.WIFSIGNALED(status):
            self._say(
                f"the process that ran the tests was killed ({signal_name(os.WTERMSIG(status))}): its results are lost"
            )
        process.exit = process.exit or Exit(os.waitstatus_to_exitcode(status))
        self._collector = self._original

    def _end(self, process: TestProcess) -> None:
        """Hold the original, whose end the shell would notice; kill a copy."""
        if self._collector == self._original:
            self._node.held = self._original
            for thread in linux.threads_of(self._original):
                signal_thread(self._original, thread, signal.SIGABRT)
            for child in descendants_of(self._original):
                if child not in (os.getpid(), self._keeper):
                    kill_tree(child)
            # If this process is killed, the kernel closes the pipe and sends the signal.
            fcntl.fcntl(self._lifeline[0], fcntl.F_SETOWN, self._original)
            fcntl.fcntl(self._lifeline[0], fcntl.F_SETSIG, self._exit_signal)
            fcntl.fcntl(self._lifeline[0], fcntl.F_SETFL, os.O_ASYNC)
            process.exit = process.exit or Exit(None)
        else:
            end_tree(self._collector)

    def _release(self) -> None:
        """Let the original exit, if it is held."""
        descriptor = exit_descriptor(self._original) if self.failures else None
        if descriptor is not None:
            send_signal(self._original, self._exit_signal)
            send_signal(self._original, signal.SIGCONT)
            with selectors.DefaultSelector() as selector:
                selector.register(descriptor, selectors.EVENT_READ)
                if not selector.select(_RELEASE_LIMIT):
                    send_signal(self._original, signal.SIGKILL)

    def _exit(self) -> NoReturn:
        if self._keeper == os.getppid():
            send_signal(self._keeper, signal.SIGCONT)  # somebody may have stopped it
        os._exit(0)

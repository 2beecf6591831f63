"""The life of a test's process: prepare, wait for a job, run it, take leave, end.

Most of it passes before the job arrives: a spare process is prepared while the test before it still runs.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import _exit, getpid  # bound here: a test may replace them
from pathlib import Path

import pytest
from _pytest.junitxml import xml_key

from pytest_rlstability.beacon import Beacon, enter_test_process, install_beacon
from pytest_rlstability.isolation import faults, workers
from pytest_rlstability.isolation.alarms import announce_alarms
from pytest_rlstability.isolation.board import Board, Slot
from pytest_rlstability.isolation.coverage import save_coverage
from pytest_rlstability.isolation.farewell import check_exit, drop_references
from pytest_rlstability.isolation.output import Output, output_paths
from pytest_rlstability.isolation.reporter import Reporter, silence_other_reporters
from pytest_rlstability.isolation.seeds import Seeds
from pytest_rlstability.isolation.wire import UNHEARD, Address, Record, Wire, connect
from pytest_rlstability.leaks.leftovers import Leftovers
from pytest_rlstability.options import use_seed


class Lifeline(Beacon):
    """The beacon of an isolated test: counters on the board, everything else over the wire."""

    def __init__(self, wire: Wire, slot: Slot) -> None:
        self._wire = wire
        self.beat = slot.beat  # type: ignore[method-assign]
        self.lap = slot.lap  # type: ignore[method-assign]
        self.rest = slot.rest  # type: ignore[method-assign]

    def stage(self, path: tuple[str, ...]) -> None:
        self._wire.send({"kind": "stage", "path": path, "time": time.time()})

    def say(self, kind: str, record: Mapping[str, object]) -> None:
        self._wire.send({"kind": kind, **record})


@dataclass
class Link:
    """A test process's connections to the supervisor."""

    serial: int
    wire: Wire
    fault_descriptor: int

    @classmethod
    def open(cls, hub: Address, token: str, serial: int) -> Link:
        wire, fault_socket = Wire(connect(hub)), connect(hub)
        wire.send({"kind": "hello", "role": "test", "token": token, "serial": serial, "pid": os.getpid()})
        Wire(fault_socket).send({"kind": "hello", "role": "fault", "token": token, "serial": serial})
        # Detached: it has to stay open until the very end of the process.
        return cls(serial, wire, fault_socket.detach())


class Child:
    """Runs jobs in a test's process until the one that ends it.

    Made once; what it prepares then is inherited by every process the zygote forks. ``attach`` makes one of those, or
    the spawned one itself, the process of a test.
    """

    def __init__(self, session: pytest.Session, directory: Path, *, seed: int, hold: bool, finalizing: bool) -> None:
        self._seeds = Seeds(seed)
        self._session = session
        self._directory = directory
        self._finalizing = finalizing
        self._attached = False
        self._broken_off = False
        self._board = Board(directory)
        self._output = Output(session.config)
        self._reporter = Reporter(session.config, directory)
        self._junit = session.config.stash.get(xml_key, None)
        enter_test_process(session.config)
        silence_other_reporters(session)
        session.config.pluginmanager.register(self._reporter, "rlstability-reporter")
        if self._junit is not None:  # what is in it now is of tests before, and told
            self._junit.global_properties.clear()
            self._junit.node_reporters.clear()
        workers.remember_ends()
        self._faults = faults.Faults(hold=hold)
        faults.follow_forks(directory, self._cut_off)
        faults.announce_threads(self._tell_thread)
        announce_alarms(self._note_alarm)

    def attach(self, link: Link) -> None:
        """Become the test process with the link's serial number."""
        self._attached, self._wire = True, link.wire
        self._slot = self._board.slot(link.serial)
        self._slot.begin()
        self._reporter.attach(self._wire, self._slot)
        install_beacon(self._session.config, Lifeline(self._wire, self._slot))
        self._output.keep_in(output_paths(self._directory, link.serial))
        self._faults.speak_to(link.fault_descriptor)
        for thread in threading.enumerate():
            self._tell_thread(thread, before=thread is not threading.main_thread())

    def _cut_off(self) -> bool:
        """In a forked copy of this process: say nothing more, if anybody was listening."""
        if self._attached:
            self._wire.drop()
            self._reporter.attach(self._wire, Slot.of_nobody())
        return self._attached

    def _tell_thread(self, thread: threading.Thread, before: bool = False) -> None:
        # A fork changes the number by which the kernel knows a thread, and thread.native_id stays.
        native = threading.get_native_id() if thread.ident == threading.get_ident() else thread.native_id
        words = {"ident": thread.ident, "native": native, "name": thread.name, "daemon": thread.daemon}
        self._wire.send({"kind": "thread", "before": before, **words})

    def _note_alarm(self, seconds: float, again: bool) -> None:
        if self._attached and not self._wire.closed:
            self._slot.set_alarm(seconds, again=again)

    def work(self, find: Callable[[object], pytest.Item]) -> None:
        """Run the jobs that come, until the one that ends the process."""
        own_pid = getpid()
        before = Leftovers()
        item: pytest.Item | None = None
        goes_on = False
        while (job := self._wire.receive()) is not None:
            if job["early"] and not goes_on:
                continue  # sent before anybody knew how the last one would end
            if job["item"] is None:
                self._leave_early(item, before)
                break
            item = find(job["item"])
            nextitem = None if job["next"] is None else find(job["next"])
            passed = self._run(item, nextitem, job)
            if getpid() != own_pid:
                _exit(0)  # a copy the test forked and let run on: it is not the test
            session = self._session
            leaves = nextitem is None or self._broken_off or bool(session.shouldfail or session.shouldstop)
            goes_on = passed and not leaves
            stops = {"shouldstop": session.shouldstop, "shouldfail": session.shouldfail}
            self._wire.send({"kind": "done", "laps": self._slot.laps, "goes_on": goes_on, "stops": stops})
            if leaves:
                self._tear_down_all()
                self._take_leave(item, before, exit_check=job["exit_check"])
                break

    def _leave_early(self, item: pytest.Item | None, before: Leftovers) -> None:
        """The test this process was told to expect will not come: tear down what was kept for it."""
        if item is not None:
            self._session._setupstate.teardown_exact(None)
            self._take_leave(item, before, exit_check=True)

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None, job: Record) -> bool:
        """Run one test; whether it passed."""
        self._slot.clear()
        self._reporter.all_passed = True
        limit_memory(job["memory"])
        self._seeds.sow(job["seed"])
        if job["repeated"]:
            use_seed(item.config, job["seed"])
            leave_repeating(item.config)
        self._session.testsfailed = job["failed"]
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        except pytest.exit.Exception as stop:
            self._break_off({"kind": "stop", "reason": stop.msg, "code": stop.returncode})
        except KeyboardInterrupt:
            self._break_off({"kind": "interrupt"})
        except BaseException:
            self._break_off({"kind": "fault", "traceback": traceback.format_exc()})
        self._send_junit()
        return self._reporter.all_passed

    def _break_off(self, record: Record) -> None:
        self._reporter.all_passed = False
        self._broken_off = True
        self._wire.send(record)

    def _tear_down_all(self) -> None:
        """The process ends here: what a broken-off test left, or was kept for further ones, goes as at pytest's end."""
        try:
            self._session._setupstate.teardown_exact(None)
        except BaseException:
            traceback.print_exc()

    def _send_junit(self) -> None:
        """What the test has told pytest's JUnit log, which is this process's copy of it."""
        log = self._junit
        if log is None:
            return
        attributes = {name: value for case in log.node_reporters.values() for name, value in case.attrs.items()}
        if log.global_properties or attributes:
            self._wire.send({"kind": "junit", "suite": log.global_properties, "attributes": attributes})
        log.global_properties.clear()
        log.node_reporters.clear()

    def _take_leave(self, item: pytest.Item, before: Leftovers, *, exit_check: bool) -> None:
        self._slot.enter("exit")
        if exit_check:
            drop_references(item)
            check_exit(item, lambda: self._tell_leftovers(before), finalizing=self._finalizing)
        save_coverage(self._directory)
        if self._finalizing:
            self._faults.stop_holding()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
        if not self._wire.send({"kind": "clean"}):
            _exit(UNHEARD)

    def _tell_leftovers(self, before: Leftovers) -> None:
        if left := before.since():
            self._wire.send({"kind": "leftovers", "what": left})


def leave_repeating(config: pytest.Config) -> None:
    """This is one of many runs, which are counted: no other plugin may try again until it passes."""
    for name in ("rerunfailures", "flaky"):
        if config.pluginmanager.has_plugin(name):
            config.pluginmanager.unregister(name=name)


def limit_memory(size: int | None) -> None:
    """Cap what this process may allocate on top of what it has; the supervisor watches the whole tree as well."""
    if size is None:
        return
    try:
        import resource

        with open("/proc/self/status", "rb") as file:
            data = next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (data + size, resource.RLIM_INFINITY))
    except (ImportError, OSError, ValueError, StopIteration):
        return

"""The life of a test's process: prepare, wait for a test, run it, check the exit, end.

Most of it happens before the test is known: a spare process is prepared while the test before it still runs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from os import _exit, getpid  # bound here: a test may replace them
from pathlib import Path
from threading import enumerate as all_threads
from threading import get_ident, get_native_id, main_thread  # bound here: a test may replace them
from traceback import format_exc, print_exc  # bound here: a test may replace them
from typing import Any

import pytest

from pytest_rlstability.child import crash_handlers, dead_workers
from pytest_rlstability.child.alarms import report_alarms, report_sleeps
from pytest_rlstability.child.coverage import save_coverage
from pytest_rlstability.child.exit_checks import check_exit, drop_references
from pytest_rlstability.child.finalizers import Finalizers
from pytest_rlstability.child.gc_freeze import collect
from pytest_rlstability.child.imports import Imports
from pytest_rlstability.child.link import Link, ProcessChannel
from pytest_rlstability.child.memory import TestMemory
from pytest_rlstability.child.output import Output, output_paths
from pytest_rlstability.child.plugin_state import PluginWatch, plugin_state
from pytest_rlstability.child.process_state import ProcessState
from pytest_rlstability.child.report_sender import ReportSender, remove_other_reporters
from pytest_rlstability.child.resources import ResourceSnapshot
from pytest_rlstability.child.seeds import Seeds, seed_of
from pytest_rlstability.child.stack_writer import StackWriter
from pytest_rlstability.child.stall_description import describe_when_asked
from pytest_rlstability.compat.cpython import on_thread_start
from pytest_rlstability.compat.plugins import count_attempts
from pytest_rlstability.compat.pytest import JunitLog, begin_live_log, tear_down
from pytest_rlstability.config.options import use_seed
from pytest_rlstability.model.channel import become_test_process, install_channel
from pytest_rlstability.model.messages import (
    NOT_DELIVERED,
    CleanExit,
    Finish,
    FixturesTornDown,
    InternalError,
    Interrupted,
    JunitRecorded,
    Message,
    PluginsChanged,
    ProtocolError,
    ResourcesLeft,
    RunTest,
    SessionExit,
    TestDone,
    ThreadStarted,
)
from pytest_rlstability.model.progress_counters import ProcessCounters, ProgressCounters
from pytest_rlstability.osinfo.timed_stacks import NEEDED, stacks_path

FindTest = Callable[[int | str], pytest.Item]


class TestRunner:
    """Runs tests in a test's process until the one that ends it.

    Made once; every process that the zygote forks inherits what it prepares. ``attach`` makes one of those, or the
    spawned one itself, the process of a test.
    """

    __test__ = False

    def __init__(
        self,
        session: pytest.Session,
        directory: Path,
        *,
        hold: bool,
        finalizing: bool,
        finalizers: Finalizers | None = None,
    ) -> None:
        self._seeds = Seeds()
        self._session = session
        self._directory = directory
        self._finalizing = finalizing
        self._finalizers = finalizers or Finalizers()
        self._attached = False
        self._broken_off = False
        self.keeps_wide_fixtures = False
        """Whether wide fixtures were set up before the fork, and are not for this process to tear down."""
        self.before_end: Callable[[], None] = lambda: None
        """Called when everything has been sent."""
        self._all_counters = ProgressCounters(directory)
        self._output = Output(session.config)
        self._reports = ReportSender(session.config, directory)
        self._junit = JunitLog(session.config)
        self._memory = TestMemory()
        self._stacks: StackWriter | None = None
        become_test_process(session.config)
        remove_other_reporters(session)
        session.config.pluginmanager.register(self._reports, "rlstability-report-sender")
        self._plugins = plugin_state(session)
        if self._plugins.carried:
            session.config.pluginmanager.register(PluginWatch(self._plugins, lambda sent: self._connection.send(sent)))
        self._junit.take()  # what is in it now belongs to earlier tests and was reported
        dead_workers.remember_ends()
        self._crashes = crash_handlers.CrashHandlers(hold=hold)
        if not finalizing:
            self._crashes.suspend()
        crash_handlers.follow_forks(directory, self._cut_off)
        crash_handlers.follow_spawns(directory)
        describe_when_asked(directory, lambda message: self._connection.send(message))
        on_thread_start(self._send_thread)
        report_alarms(self._note_alarm)
        report_sleeps(self._note_sleep)

    def note_inherited(self) -> None:
        """What is there now belongs to no test. For what was set up after this was made, and before the fork."""
        self._finalizers = Finalizers()

    def attach(self, link: Link) -> None:
        """Become the test process with the link's serial number."""
        self._attached, self._connection = True, link.messages
        self._counters = self._all_counters.of_process(link.serial)
        self._counters.begin()
        self._reports.attach(self._connection, self._counters)
        install_channel(self._session.config, ProcessChannel(self._connection, self._counters))
        self._output.keep_in(output_paths(self._directory, link.serial))
        if NEEDED:
            self._stacks = StackWriter(stacks_path(self._directory, link.serial))
        self._crashes.write_to(link.crash_descriptor)
        for thread in all_threads():
            self._send_thread(thread, inherited=thread is not main_thread())

    def work(self, find: FindTest) -> None:
        """Run the tests that come, until the process is to end."""
        own_pid = getpid()
        before, state, imports = ResourceSnapshot(), ProcessState(), Imports()
        item: pytest.Item | None = None
        continues = False
        while (message := self._connection.receive()) is not None:
            match message:
                case RunTest(queued=True) if not continues:
                    continue  # sent before anybody knew how the last test would end
                case RunTest():
                    # Wait for a pytest that does not read here, and not in the middle of a test, whose time counts.
                    self._connection.has_room(None)
                    item = find(message.test)
                    stays = self._run(item, find, message)
                    if getpid() != own_pid:
                        _exit(0)  # a copy of the process that the test forked and let run on
                    peak, over_the_cap = self._memory.end()
                    continues = stays and not (self._reports.failed or over_the_cap)
                    if stays:
                        collect(1)  # what the test dropped is finalized while it is supervised
                        left = [*before.note_owner(item.nodeid), *state.changes(self._memory.in_use)]
                        self._send_done(continues, peak, stays=True, left=left)
                    else:
                        self._send_done(continues, peak, imported=imports.of_test())
                        self._tear_down_all(item)
                        self._end(item, before, exit_check=message.exit_check)
                        return
                case PluginsChanged(changes=changes, version=version):
                    self._plugins.apply(changes, version)
                case Finish():
                    if item is not None:
                        self._tear_down_late(None)
                        self._end(item, before, exit_check=True)
                    return
                case _:
                    raise ProtocolError(f"a test process does not get {type(message).__name__}")

    def _run(self, item: pytest.Item, find: FindTest, order: RunTest) -> bool:
        """Run one test; whether the process waits for another one."""
        next_item = self._after_last(item) if order.next_test is None else find(order.next_test)
        self._counters.clear()
        dead_workers.forget_dead_workers()
        self._finalizers.begin(shared=order.stays)
        self._reports.failed = False
        self._memory.begin(order.memory)
        if self._stacks is not None:
            self._stacks.every(order.stacks_every)
        self._seeds.apply(seed_of(order.seed, item.nodeid))
        if order.repeated:
            use_seed(item.config, order.seed)
            disable_reruns(item.config)
        session = self._session
        session.testsfailed = order.tests_failed
        if order.attempts:
            count_attempts(item.config, item.nodeid, order.attempts)
        self._tear_down_late(item)  # the test before it may have been told of another one that would follow
        begin_live_log(item.config)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
        except pytest.exit.Exception as stop:
            self._break_off(SessionExit(stop.msg, stop.returncode))
        except KeyboardInterrupt:
            self._break_off(Interrupted())
        except BaseException:
            self._break_off(InternalError(format_exc()))
        self._send_junit()
        return order.stays and not (self._broken_off or session.shouldfail or session.shouldstop)

    def _break_off(self, reason: Message) -> None:
        self._broken_off = True
        self._connection.send(reason)

    def _after_last(self, item: pytest.Item) -> Any:
        """What pytest is told to come after the last test, which decides what it tears down."""
        return item.parent if self.keeps_wide_fixtures else None

    def _tear_down_late(self, next_item: pytest.Item | None) -> None:
        """Tear down what *next_item* does not need. An error in the tear-down of wide fixtures is a test's error."""
        try:
            tear_down(self._session, next_item)
        except Exception:
            self._connection.send(FixturesTornDown(format_exc()))

    def _tear_down_all(self, item: pytest.Item) -> None:
        """The process ends here. Tear down what an interrupted test left, or what was kept for further tests."""
        try:
            tear_down(self._session, self._after_last(item))
        except BaseException:
            print_exc()

    def _end(self, item: pytest.Item, before: ResourceSnapshot, *, exit_check: bool) -> None:
        self._counters.enter("exit")
        if exit_check:
            drop_references(item)
            check_exit(item, lambda: self._send_left(before), finalizing=self._finalizing)
        save_coverage(self._directory)
        if self._finalizing:
            self._crashes.stop_holding()
        if self._stacks is not None:
            self._stacks.end()
        flush_output()
        if not self._connection.send(CleanExit()):
            _exit(NOT_DELIVERED)
        self.before_end()
        if exit_check and not self._finalizing:
            self._finalizers.end_process()

    # messages

    def _send_done(
        self,
        continues: bool,
        peak: int,
        *,
        stays: bool = False,
        left: Sequence[str] = (),
        imported: Sequence[str] = (),
    ) -> None:
        flush_output()  # with -s it goes to the terminal, where it belongs before the test's result
        session = self._session
        laps, stop, fail = self._counters.laps, session.shouldstop, session.shouldfail
        self._connection.send(TestDone(laps, continues, stays, peak, tuple(left), tuple(imported), stop, fail))

    def _send_junit(self) -> None:
        """Send what the test wrote to pytest's JUnit log, of which this process has a copy."""
        properties, attributes = self._junit.take()
        if properties or attributes:
            self._connection.send(JunitRecorded(properties, attributes))

    def _send_left(self, before: ResourceSnapshot) -> None:
        if left := before.left_since():
            self._connection.send(ResourcesLeft(left))

    def _send_thread(self, thread: threading.Thread, inherited: bool = False) -> None:
        # A fork changes the number by which the kernel knows a thread, but not thread.native_id.
        native = get_native_id() if thread.ident == get_ident() else thread.native_id
        self._connection.send(ThreadStarted(thread.ident or 0, native or 0, thread.name, thread.daemon, inherited))

    def _note_alarm(self, seconds: float, again: bool) -> None:
        if self._attached and not self._connection.closed:
            self._counters.set_alarm(seconds, again=again)

    def _note_sleep(self, seconds: float) -> None:
        if self._attached and not self._connection.closed:
            self._counters.begin_sleep(seconds, main=get_ident() == main_thread().ident)

    def _cut_off(self) -> bool:
        """In a forked copy of this process: send nothing more. Whether the process was a test's."""
        if self._attached:
            self._connection.close()
            self._reports.attach(self._connection, ProcessCounters.of_nobody())
        return self._attached


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            with suppress(OSError):  # the test may have closed what it leads to
                stream.flush()


def disable_reruns(config: pytest.Config) -> None:
    """This is one of many runs, and every run counts: no other plugin may repeat it until it passes."""
    for name in ("rerunfailures", "flaky"):
        if config.pluginmanager.has_plugin(name):
            config.pluginmanager.unregister(name=name)

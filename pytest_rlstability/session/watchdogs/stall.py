"""Watches a test's progress from outside, and distinguishes a standstill from slowness."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from pytest_rlstability.model.lock_waits import find_cycle, is_certain, leads_to, waits_text
from pytest_rlstability.model.run import Killed
from pytest_rlstability.model.units import format_duration
from pytest_rlstability.model.verdict import StallClass
from pytest_rlstability.osinfo import LINUX
from pytest_rlstability.osinfo.fatal_signals import POSITION_SIGNAL, signal_name
from pytest_rlstability.osinfo.linux import ended_by
from pytest_rlstability.osinfo.peers import describe_databases, describe_wait, waits_for_worker, waits_outside
from pytest_rlstability.osinfo.processes import children_of, delay_of, is_helper, members_of, ticks_of
from pytest_rlstability.osinfo.threads import (
    SLEEPS,
    TreeState,
    can_be_woken,
    look_at_tree,
    waits_for_processes,
)
from pytest_rlstability.osinfo.worker_stacks import fork_after_threads, worker_stacks
from pytest_rlstability.session.test_process import TestProcess
from pytest_rlstability.session.watchdogs.positions import BUSY_TICKS, Positions
from pytest_rlstability.verdicts.stall import RUNNING, Look, Standstill, classify, is_deadlock, thread_lines

INTERVAL = 0.5
_LONGEST_INTERVAL = 1.5
_COST_SHARE = 0.0015
DEADLOCK_AFTER = 2.5
"""Seconds all threads must have been seen in endless waits, without a context switch, to be called a deadlock."""
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class StallWatch:
    """Ends a test after *after* seconds without progress, and a certain deadlock sooner.

    Progress is a beat in a test that beats. In one that does not, or outside its body, it is processor time of any
    thread in its process tree, as long as the threads do not stay on the same lines. ``verdicts.stall`` has the rules.
    """

    def __init__(
        self,
        after: float,
        directory: Path,
        say_slow: Callable[[str], None],
        sample: Callable[[TestProcess, Collection[int]], dict[int, str]],
        *,
        native: str = "auto",
        alarm_is_ours: bool = False,
        strangers: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._after = after
        self._strangers = strangers
        self._directory = directory
        self._say_slow = say_slow
        self._sample = sample
        self._native = native
        self._alarm_is_ours = alarm_is_ours
        self._warned = False
        self._state = Standstill(after)
        self._ticks: dict[int, int] = {}
        self._delays: dict[int, float] = {}
        self._tree: TreeState | None = None
        self._positions = Positions()
        self._looked = time.monotonic()
        self._interval = max(0.05, min(INTERVAL, after / 4))
        self.due = self._looked + self._interval

    def check(self, process: TestProcess) -> Killed | None:
        now, spent_before = time.monotonic(), time.thread_time()
        # Of a gap in which this process was suspended or starved, only the planned part counts.
        gap = min(now - self._looked, 2 * self._interval)
        self._looked = now
        look, tree = self._see(process, gap)
        self._state.note(look)
        if not look.beating and tree is not None and self._moves_on(process, tree):
            self._state.moved_on()
        killed = None if tree is None else self._judge(process, tree)
        spent = time.thread_time() - spent_before
        if killed is None:
            self._interval = min(max(self._interval, INTERVAL, spent / _COST_SHARE), _LONGEST_INTERVAL)
        self.due = time.monotonic() + self._interval
        return killed

    def _see(self, process: TestProcess, gap: float) -> tuple[Look, TreeState | None]:
        counters, state = process.counters, self._state
        mark = (counters.phase, counters.phase_entered, counters.beats)
        beating = counters.phase == "call" and counters.beating
        members = members_of(process.pid, self._strangers())
        ticks = {pid: ticks_of(pid) for pid in members}
        used = sum(count - self._ticks.get(pid, count) for pid, count in ticks.items())
        busy = used >= BUSY_TICKS or not self._ticks
        self._ticks = ticks
        starved = self._starved(members, gap) if beating else 0.0
        cpu = used / _TICKS_A_SECOND
        half = self._after / 2
        close_look = process.lock_waits or counters.phase == "exit" or (beating and state.still + gap >= half)
        if busy and not close_look and state.spun + cpu < half:
            return Look(gap, mark, beating, busy=True, cpu=cpu), None
        self._tree = look_at_tree(process.pid, members, self._tree)
        tree = process.stack_waits.add_to(self._tree, process)
        outside = state.still >= half and waits_outside(tree, process.main)
        daemons = process.daemon_threads
        now = time.monotonic()
        return Look(gap, mark, beating, tree, process.main, now, starved, outside, busy, cpu, daemons), tree

    def _moves_on(self, process: TestProcess, tree: TreeState) -> bool:
        """Whether the threads that compute, or the main thread if it polls, have left the lines on which they were seen
        last. They are asked as rarely as will do: a signal may wake a thread from a wait."""
        state, threads = self._state, tree.of(process.pid)
        if not self._positions.are_due(state.spun + state.idle + state.frozen, self._after / 2):
            return False
        working = self._positions.working(threads)
        if state.spun and not working:
            return True  # another process computes
        main = {thread.thread for thread in threads if thread.thread == process.main and not thread.untimed}
        if not (asked := working or main):
            return False
        stacks = self._sample(process, asked)
        unseen = POSITION_SIGNAL is None and not stacks
        return bool(state.spun and unseen) or self._positions.changed(stacks)

    def _starved(self, members: list[int], gap: float) -> float:
        """The share of the time since the last look in which other processes kept the test from running."""
        delays = {pid: delay_of(pid) for pid in members}
        growth = max((delays[pid] - self._delays.get(pid, delays[pid]) for pid in members), default=0.0)
        self._delays = delays
        return min(1.0, max(0.0, growth / gap)) if gap > 0 else 0.0

    def _judge(self, process: TestProcess, tree: TreeState) -> Killed | None:
        state = self._state
        if state.is_over and (state.spins or not self._is_waking(process)):
            return self._standstill(process, tree, state.still)
        if state.quiet >= DEADLOCK_AFTER and self._certain_deadlock(process, tree) and not self._is_waking(process):
            return self._standstill(process, tree, max(state.still, state.quiet))
        woken = process.counters.expects_alarm(otherwise=False)
        locked = state.main_still if LINUX else max(state.main_still, state.quiet)  # elsewhere stacks come late
        if locked >= DEADLOCK_AFTER and _locked_out(process) and not woken:
            return self._standstill(process, tree, locked)
        if state.gone >= 0.5 and not self._warned:
            self._warned = True
            # What only ticks is counted slowly: when it fails, the clock does not say.
            end = f"at {format_duration(self._after)}" if state.frozen >= state.idle + state.spun else "if that goes on"
            self._say_slow(f"{self._doing(process, tree)}; fails {end}")
        elif state.gone < 0.1:
            self._warned = False
        return None

    def _doing(self, process: TestProcess, tree: TreeState) -> str:
        """What the test does, for a person who watches."""
        state, line = self._state, self._positions.text
        if max(state.idle, state.frozen) < self._after / 2:
            return f"on the same lines for {format_duration(state.spun)} of processor time: {line or 'not Python'}"
        main = next((thread for thread in tree.threads if thread.thread == process.main), None)
        waits = "" if main is None else f", main thread {describe_wait(main, tree.pids)}"
        return f"no progress for {format_duration(state.still)}{waits}"

    def _is_waking(self, process: TestProcess) -> bool:
        """Whether a thread that has not moved is ready to, and only waits for a processor. That takes a new look."""
        if self._state.quiet < 2 * self._interval:
            return False
        members = members_of(process.pid, self._strangers())
        return any(thread.state in RUNNING for thread in look_at_tree(process.pid, members).threads)

    def _certain_deadlock(self, process: TestProcess, tree: TreeState) -> bool:
        tree = _without(tree, process.inherited_threads)
        ours = not process.counters.expects_alarm(otherwise=not self._alarm_is_ours)
        return is_deadlock(tree) and not can_be_woken(tree, alarm_is_ours=ours, ours=process.own_signals)

    def _standstill(self, process: TestProcess, tree: TreeState, still: float) -> Killed:
        state = self._state
        active = state.spins or state.quiet < 2 * self._interval
        asleep = state.main_asleep if _waits_for_a_peer(tree, process.main) else state.main_still
        # In the first half of the time a busy process is not looked at closely.
        if not state.spins and asleep and asleep + 2 * self._interval >= still / 2:
            active = False  # what moves beside it, a server's loop perhaps, is not what the test waits for
        detail = f"no progress for {format_duration(still)}"
        if still >= 1.5 * self._after + 2 * self._interval:
            detail += f" (the limit is {format_duration(self._after)}; time in which something still moved counts less)"
        if state.spins:
            detail = f"on the same lines for {format_duration(state.spun)} of processor time"
        aside = process.inherited_threads if active or state.quiet >= still else process.daemon_threads
        return Killed(
            "stall",
            detail,
            self._after,
            lambda: evidence(process, tree, self._directory, active=active, native=self._native, aside=aside),
        )


def _without(tree: TreeState, threads: Collection[int]) -> TreeState:
    """What belongs to the test: not *threads*, and not the processes that multiprocessing starts for itself. A wait for
    a worker of its fork server is a wait for a child."""
    helpers = {pid for pid in tree.pids[1:] if is_helper(pid)}
    own = [state for state in tree.threads if state.pid not in helpers and state.thread not in threads]
    return TreeState(tuple(replace(one, call="waitid") if waits_for_worker(one, helpers) else one for one in own))


def _waits_for_a_peer(tree: TreeState, main: int) -> bool:
    """Whether the main thread waits for something other than a lock: a socket, a pipe, a process."""
    return any(thread.thread == main and thread.call not in ("", "?", "futex") for thread in tree.threads)


def _locked_out(process: TestProcess) -> bool:
    """Whether the test's main thread waits in, or behind, a cycle of locks that are all known."""
    waits = process.lock_waits
    cycle = find_cycle(waits)
    main = next((wait for wait in waits.values() if wait.native == (process.main_thread or process.pid)), None)
    return main is not None and is_certain(waits, cycle) and leads_to(waits, main.thread, cycle)


def _locked_database(pid: int, tree: TreeState) -> str:
    """The databases that are locked, if the test's process sleeps, as SQLite does while it waits."""
    sleeps = any(thread.call in SLEEPS for thread in tree.of(pid))
    return "\n".join(describe_databases(pid, tree.pids)) if sleeps else ""


def evidence(
    process: TestProcess,
    tree: TreeState,
    directory: Path,
    *,
    active: bool,
    native: str = "auto",
    aside: Collection[int] = (),
) -> dict[str, object]:
    """What a stall report shows beyond the stacks of the test's own process. The threads *aside* do not count for its
    class."""
    words = {thread.thread: describe_wait(thread, tree.pids) for thread in tree.threads}
    cycle = find_cycle(process.lock_waits)
    judged = _without(tree, aside)
    kind = classify(judged, active=active, shared=can_be_woken(judged, alarm_is_ours=True, ours=process.own_signals))
    return {
        "class": StallClass.DEADLOCK if _locked_out(process) else kind,
        "cycle": waits_text(process.lock_waits) if cycle else "",
        "waits": "" if cycle else waits_text(process.lock_waits),
        "threads": thread_lines(_without(tree, ()), words, process.native_names),
        "worker_stacks": worker_stacks(process.pid, tree, directory, native),
        "hint": fork_after_threads(process.pid, tree, native),
        "database": _locked_database(process.pid, tree),
        "shared_lock": any(waits_for_processes(thread) for thread in tree.of(process.pid)),
        "ended": {child: signal_name(number) for child in children_of(process.pid) if (number := ended_by(child))},
    }

"""Watches a test's progress from outside, and distinguishes a standstill from slowness."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from pytest_rlstability.model.lock_waits import find_cycle, is_certain, leads_to, waits_text
from pytest_rlstability.model.run import Killed
from pytest_rlstability.model.units import format_duration
from pytest_rlstability.model.verdict import StallClass
from pytest_rlstability.osinfo.peers import describe_wait, waits_outside
from pytest_rlstability.osinfo.processes import delay_of, is_helper, members_of, ticks_of
from pytest_rlstability.osinfo.threads import TreeState, can_be_woken, look_at_tree
from pytest_rlstability.osinfo.worker_stacks import fork_after_threads, worker_stacks
from pytest_rlstability.session.connections import TestProcess
from pytest_rlstability.verdicts.stall import RUNNING, Look, Standstill, classify, is_deadlock, thread_lines

INTERVAL = 0.5
_LONGEST_INTERVAL = 1.5
_COST_SHARE = 0.0015
DEADLOCK_AFTER = 2.5
"""Seconds all threads must have been seen in endless waits, without a context switch, to be called a deadlock."""
_BUSY_TICKS = 3
"""Ticks of processor time since the last look that need no closer look to be called progress."""


class StallWatch:
    """Ends a test after *after* seconds without progress, and a certain deadlock sooner.

    Progress is a beat in a test that beats; in one that does not, or outside its body, processor time or a context
    switch of any thread in its process tree. ``verdicts.stall`` has the rules.
    """

    def __init__(
        self,
        after: float,
        directory: Path,
        say_slow: Callable[[str], None],
        *,
        native: str = "auto",
        alarm_is_ours: bool = False,
        strangers: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._after = after
        self._strangers = strangers
        self._directory = directory
        self._say_slow = say_slow
        self._native = native
        self._alarm_is_ours = alarm_is_ours
        self._warned = False
        self._state = Standstill(after)
        self._ticks: dict[int, int] = {}
        self._delays: dict[int, float] = {}
        self._tree: TreeState | None = None
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
        killed = None if tree is None else self._judge(process, tree)
        spent = time.thread_time() - spent_before
        if killed is None:
            self._interval = min(max(self._interval, INTERVAL, spent / _COST_SHARE), _LONGEST_INTERVAL)
        self.due = time.monotonic() + self._interval
        return killed

    def _see(self, process: TestProcess, gap: float) -> tuple[Look, TreeState | None]:
        counters = process.counters
        mark = (counters.phase, counters.phase_entered, counters.beats)
        beating = counters.phase == "call" and counters.beating
        members = members_of(process.pid, self._strangers())
        ticks = {pid: ticks_of(pid) for pid in members}
        busy = sum(ticks.values()) - sum(self._ticks.values()) >= _BUSY_TICKS or not self._ticks
        self._ticks = ticks
        starved = self._starved(members, gap) if beating else 0.0
        leaving = counters.phase == "exit"
        close_look = process.lock_waits or leaving or (beating and self._state.still + gap >= self._after / 2)
        if busy and not close_look:
            return Look(gap, mark, beating, busy=True), None
        tree = self._tree = look_at_tree(process.pid, members, self._tree)
        background = {thread.thread for thread in tree.of(process.pid)} if leaving else process.daemon_threads
        outside = self._state.background >= self._after / 2 and waits_outside(tree, process.pid)
        return Look(gap, mark, beating, tree, process.pid, frozenset(background), starved, outside), tree

    def _starved(self, members: list[int], gap: float) -> float:
        """The share of the time since the last look in which other processes kept the test from running."""
        delays = {pid: delay_of(pid) for pid in members}
        growth = max((delays[pid] - self._delays.get(pid, delays[pid]) for pid in members), default=0.0)
        self._delays = delays
        return min(1.0, max(0.0, growth / gap)) if gap > 0 else 0.0

    def _judge(self, process: TestProcess, tree: TreeState) -> Killed | None:
        state = self._state
        if state.is_over and not self._is_waking(process):
            return self._standstill(process, tree, max(state.silent, state.background))
        if state.quiet >= DEADLOCK_AFTER and self._certain_deadlock(process, tree) and not self._is_waking(process):
            return self._standstill(process, tree, max(state.still, state.quiet))
        if state.main_still >= DEADLOCK_AFTER and _locked_out(process):
            return self._standstill(process, tree, state.main_still)
        if state.still >= self._after / 2 and not self._warned:
            self._warned = True
            self._say_slow(f"no progress for {format_duration(state.still)}, fails at {format_duration(self._after)}")
        elif state.still == 0:
            self._warned = False
        return None

    def _is_waking(self, process: TestProcess) -> bool:
        """Whether a thread that has not moved is ready to, and only waits for a processor. That takes a new look."""
        if self._state.quiet < 2 * self._interval:
            return False
        members = members_of(process.pid, self._strangers())
        return any(thread.state in RUNNING for thread in look_at_tree(process.pid, members).threads)

    def _certain_deadlock(self, process: TestProcess, tree: TreeState) -> bool:
        tree = _without(tree, process.inherited_threads)
        ours = not process.counters.expects_alarm(otherwise=not self._alarm_is_ours)
        return is_deadlock(tree) and not can_be_woken(tree, alarm_is_ours=ours)

    def _standstill(self, process: TestProcess, tree: TreeState, still: float) -> Killed:
        state = self._state
        active = state.quiet < 2 * self._interval and state.background < self._after
        asleep = state.main_asleep if _waits_for_a_peer(tree, process.pid) else state.main_still
        if asleep + 2 * self._interval >= still:
            active = False  # what moves beside it, a server's loop perhaps, is not what the test waits for
        detail = f"no progress for {format_duration(still)}"
        aside = process.daemon_threads if state.background >= self._after else process.inherited_threads
        return Killed(
            "stall",
            detail,
            self._after,
            lambda: evidence(process, tree, self._directory, active=active, native=self._native, aside=aside),
        )


def _without(tree: TreeState, threads: Collection[int]) -> TreeState:
    """What belongs to the test: not *threads*, and not the processes that multiprocessing starts for itself."""
    helpers = {pid for pid in tree.pids[1:] if is_helper(pid)}
    return TreeState(tuple(state for state in tree.threads if state.pid not in helpers and state.thread not in threads))


def _waits_for_a_peer(tree: TreeState, main: int) -> bool:
    """Whether the main thread waits for something other than a lock: a socket, a pipe, a process."""
    return any(thread.thread == main and thread.call not in ("", "?", "futex") for thread in tree.threads)


def _locked_out(process: TestProcess) -> bool:
    """Whether the test's main thread waits in, or behind, a cycle of locks that are all known."""
    waits = process.lock_waits
    cycle = find_cycle(waits)
    main = next((wait for wait in waits.values() if wait.native == process.pid), None)
    return main is not None and is_certain(waits, cycle) and leads_to(waits, main.thread, cycle)


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
    kind = classify(judged, active=active, shared=can_be_woken(judged, alarm_is_ours=True))
    return {
        "class": StallClass.DEADLOCK if _locked_out(process) else kind,
        "cycle": waits_text(process.lock_waits) if cycle else "",
        "waits": "" if cycle else waits_text(process.lock_waits),
        "threads": thread_lines(tree, words, process.native_names),
        "worker_stacks": worker_stacks(process.pid, tree, directory, native),
        "hint": fork_after_threads(process.pid, tree, native),
    }

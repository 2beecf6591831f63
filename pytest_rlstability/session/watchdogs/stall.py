"""Watches a test's progress from outside, and tells a standstill from slowness."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from pytest_rlstability.evidence.peers import describe_wait, waits_outside
from pytest_rlstability.evidence.processes import (
    TreeState,
    can_be_woken,
    delay_of,
    is_helper,
    look_at_tree,
    members_of,
    ticks_of,
)
from pytest_rlstability.evidence.worker_stacks import fork_after_threads, worker_stacks
from pytest_rlstability.facts import Killed
from pytest_rlstability.isolation.hub import TestProcess
from pytest_rlstability.locks.cycle import find_cycle, is_certain, leads_to, waits_text
from pytest_rlstability.units import format_duration
from pytest_rlstability.verdicts.stall import classify, is_deadlock, thread_lines
from pytest_rlstability.verdicts.standstill import RUNNING, Look, Standstill

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
    switch of any thread in its process tree. ``verdicts.standstill`` has the rules.
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

    def look(self, process: TestProcess) -> Killed | None:
        now, spent_before = time.monotonic(), time.thread_time()
        # Of a long gap, in which we were suspended or starved ourselves, only what was planned counts.
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
        slot = process.slot
        mark = (slot.phase, slot.phase_start, slot.beats)
        beating = slot.phase == "call" and slot.beating
        members = members_of(process.pid, self._strangers())
        ticks = {pid: ticks_of(pid) for pid in members}
        busy = sum(ticks.values()) - sum(self._ticks.values()) >= _BUSY_TICKS or not self._ticks
        self._ticks = ticks
        starved = self._starved(members, gap) if beating else 0.0
        leaving = slot.phase == "exit"
        close_look = process.lock_waits or leaving or (beating and self._state.still + gap >= self._after / 2)
        if busy and not close_look:
            return Look(gap, mark, beating, busy=True), None
        tree = self._tree = look_at_tree(process.pid, members, self._tree)
        background = {thread.thread for thread in tree.of(process.pid)} if leaving else process.daemons
        outside = self._state.background >= self._after / 2 and waits_outside(tree, process.pid)
        return Look(gap, mark, beating, tree, process.pid, frozenset(background), starved, outside), tree

    def _starved(self, members: list[int], gap: float) -> float:
        """Which part of the time since the last look the test was kept from running by others."""
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
        """Whether a thread of a test that has not moved is ready to, and only waits for a processor. That is not seen
        in what is known of its sleep: it takes a look at every thread as it is now."""
        if self._state.quiet < 2 * self._interval:
            return False
        members = members_of(process.pid, self._strangers())
        return any(thread.state in RUNNING for thread in look_at_tree(process.pid, members).threads)

    def _certain_deadlock(self, process: TestProcess, tree: TreeState) -> bool:
        tree = _without_bystanders(tree, process.bystanders)
        ours = not process.slot.expects_alarm(otherwise=not self._alarm_is_ours)
        return is_deadlock(tree) and not can_be_woken(tree, alarm_is_ours=ours)

    def _standstill(self, process: TestProcess, tree: TreeState, still: float) -> Killed:
        state = self._state
        active = state.quiet < 2 * self._interval and state.background < self._after
        asleep = state.main_asleep if _waits_for_a_peer(tree, process.pid) else state.main_still
        if asleep + 2 * self._interval >= still:
            active = False  # what ticks beside it, a server's loop perhaps, is not what the test waits in
        detail = f"no progress for {format_duration(still)}"
        aside = process.daemons if state.background >= self._after else process.bystanders
        return Killed(
            "stall",
            detail,
            self._after,
            lambda: evidence(process, tree, self._directory, active=active, native=self._native, aside=aside),
        )


def _without_bystanders(tree: TreeState, threads: Collection[int]) -> TreeState:
    """What is the test's own: not *threads*, and not the processes multiprocessing starts for itself."""
    helpers = {pid for pid in tree.pids[1:] if is_helper(pid)}
    return TreeState(tuple(state for state in tree.threads if state.pid not in helpers and state.thread not in threads))


def _waits_for_a_peer(tree: TreeState, main: int) -> bool:
    """Whether the main thread waits for something but a lock: a socket, a pipe, a process."""
    return any(thread.thread == main and thread.call not in ("", "?", "futex") for thread in tree.threads)


def _locked_out(process: TestProcess) -> bool:
    """Whether the test's main thread waits in, or behind, a cycle of locks that are known to the last one."""
    waits = process.lock_waits
    cycle = find_cycle(waits)
    main = next((wait for wait in waits.values() if wait["native"] == process.pid), None)
    return main is not None and is_certain(waits, cycle) and leads_to(waits, main["thread"], cycle)


def evidence(
    process: TestProcess,
    tree: TreeState,
    directory: Path,
    *,
    active: bool,
    native: str = "auto",
    aside: Collection[int] = (),
) -> dict[str, object]:
    """What a stall report shows beyond the stacks of the test's own process. Its class is told without the
    threads *aside*."""
    words = {thread.thread: describe_wait(thread, tree.pids) for thread in tree.threads}
    cycle = find_cycle(process.lock_waits)
    judged = _without_bystanders(tree, aside)
    kind = classify(judged, active=active, shared=can_be_woken(judged, alarm_is_ours=True))
    return {
        "class": "deadlock" if _locked_out(process) else kind,
        "cycle": waits_text(process.lock_waits) if cycle else "",
        "waits": "" if cycle else waits_text(process.lock_waits),
        "threads": thread_lines(tree, words, process.native_names),
        "worker_stacks": worker_stacks(process.pid, tree, directory, native),
        "hint": fork_after_threads(process.pid, tree, native),
    }

"""Watches a test's progress from outside, and tells a standstill from slowness."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pytest_rlstability.evidence.processes import TreeState, describe_wait, look_at_tree, maps_shared_memory
from pytest_rlstability.evidence.stacks import parse_dump
from pytest_rlstability.facts import Killed
from pytest_rlstability.isolation.faults import STACKS_SIGNAL, worker_faults_path
from pytest_rlstability.isolation.hub import TestProcess
from pytest_rlstability.isolation.kernel import command_of
from pytest_rlstability.units import format_duration
from pytest_rlstability.verdicts.stall import classify, is_deadlock, thread_lines

INTERVAL = 0.5
DEADLOCK_AFTER = 2.5
"""Seconds all threads must have been seen in endless waits, without a context switch, to be called a deadlock."""
_COST_SHARE = 0.0015


class StallWatch:
    """Ends a test after *after* seconds without progress, and a certain deadlock sooner.

    Progress is a beat in a test that beats; in one that does not, or outside its body, processor time or a context
    switch of any thread in its process tree.
    """

    def __init__(self, after: float, directory: Path, say_slow: Callable[[str], None]) -> None:
        self._after = after
        self._directory = directory
        self._say_slow = say_slow
        self._warned = False
        now = time.monotonic()
        self._progress = self._moved = now
        self._mark: tuple[object, ...] = ()
        self._activity: object = None
        self.due = now + INTERVAL

    def look(self, process: TestProcess) -> Killed | None:
        began = time.monotonic()
        tree = look_at_tree(process.pid)
        self._note(process, tree, began)
        killed = self._judge(process, tree, began)
        spent = time.monotonic() - began
        self.due = time.monotonic() + max(INTERVAL, spent / _COST_SHARE)
        return killed

    def _note(self, process: TestProcess, tree: TreeState, now: float) -> None:
        slot = process.slot
        activity = tree.activity
        if activity != self._activity:
            self._activity, self._moved = activity, now
        beating = slot.phase == "call" and slot.beating
        mark = (slot.phase, slot.phase_start, slot.beats, None if beating else activity)
        if mark != self._mark:
            self._mark, self._progress, self._warned = mark, now, False

    def _judge(self, process: TestProcess, tree: TreeState, now: float) -> Killed | None:
        still = now - self._progress
        if still >= self._after:
            return self._standstill(process, tree, now, still)
        quiet = now - self._moved
        if quiet >= DEADLOCK_AFTER and self._certain_deadlock(tree):
            return self._standstill(process, tree, now, max(still, quiet))
        if still >= self._after / 2 and not self._warned:
            self._warned = True
            self._say_slow(f"no progress for {format_duration(still)}, fails at {format_duration(self._after)}")
        return None

    def _certain_deadlock(self, tree: TreeState) -> bool:
        return is_deadlock(tree) and not any(maps_shared_memory(pid) for pid in tree.pids)

    def _standstill(self, process: TestProcess, tree: TreeState, now: float, still: float) -> Killed:
        active = now - self._moved < 2 * INTERVAL
        detail = f"no progress for {format_duration(still)}"
        return Killed("stall", detail, self._after, evidence(process, tree, self._directory, active=active))


def evidence(process: TestProcess, tree: TreeState, directory: Path, *, active: bool) -> dict[str, object]:
    """What a stall report shows beyond the stacks of the test's own process."""
    shared_memory = any(maps_shared_memory(pid) for pid in tree.pids)
    words = {thread.thread: describe_wait(thread, tree.pids) for thread in tree.threads}
    return {
        "class": classify(tree, active=active, shared_memory=shared_memory),
        "threads": thread_lines(tree, words, process.native_names),
        "worker_stacks": _worker_stacks(process.pid, tree, directory),
        "hint": _hint(process.pid, tree),
    }


def _worker_stacks(own: int, tree: TreeState, directory: Path) -> str:
    """The Python stacks of the processes the test forked: they write them when asked, without the GIL."""
    blocks = []
    for pid in tree.pids:
        path = worker_faults_path(directory, pid)
        if pid == own or STACKS_SIGNAL is None or not path.exists():
            continue
        try:
            os.kill(pid, STACKS_SIGNAL)
        except ProcessLookupError:
            continue
        text = _wait_for_text(path)
        if text:
            blocks.append(f"pid {pid} ({command_of(pid)[:60]})\n{parse_dump(text).render()}")
    return "\n".join(blocks)


def _wait_for_text(path: Path) -> str:
    """A stopped process writes nothing: do not wait for it long."""
    for _ in range(20):
        text = path.read_text(errors="replace")
        if text:
            time.sleep(0.02)
            return path.read_text(errors="replace")
        time.sleep(0.02)
    return ""


def _hint(own: int, tree: TreeState) -> str:
    """A well-known way to hang that the numbers alone show."""
    for pid in tree.pids:
        threads = tree.of(pid)
        forked = pid != own and command_of(pid) == command_of(own)
        if forked and len(threads) == 1 and threads[0].call == "futex" and threads[0].endless and _has_openmp(pid):
            return (
                f"pid {pid} was forked after this process had used a native thread pool (OpenMP): the pool's threads "
                "do not exist in the fork, and its first parallel computation waits for them for ever. "
                "Start workers with 'spawn' or 'forkserver', or call torch.set_num_threads(1) in them first."
            )
    return ""


def _has_openmp(pid: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False
    return any(name in maps for name in ("libgomp", "libomp", "libiomp"))

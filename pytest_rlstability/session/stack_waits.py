"""Adds to a look at a test's threads what their Python stacks show, where the system shows less than Linux does.

The process writes its stacks every few seconds (``osinfo.timed_stacks``). A thread that has used no processor time
since is where it was then.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlstability.model.stack_dump import ThreadStack, parse_dump
from pytest_rlstability.osinfo.stack_waits import LOCK, SLEEP, wait_of
from pytest_rlstability.osinfo.threads import ThreadState, TreeState
from pytest_rlstability.osinfo.timed_stacks import NEEDED, last_stacks

if TYPE_CHECKING:
    from pytest_rlstability.session.test_process import TestProcess

_DUMP_TICKS = 2
"""Processor time, in units of 10 ms, that writing the stacks may take. It counts where single threads are not seen."""
_WRITERS = 2
"""Threads that write the stacks: ours, and faulthandler's."""


class StackWaits:
    """What the stacks of one process have shown so far."""

    def __init__(self) -> None:
        self._size = -1
        self._stacks: tuple[ThreadStack, ...] = ()
        self._dumped = 0.0
        self._moved: dict[int, float] = {}
        self._marks: dict[int, tuple[int, int]] = {}
        self._own = (0, 0)
        """Ticks and switches that writing the stacks has cost."""

    def add_to(self, tree: TreeState, process: TestProcess) -> TreeState:
        """*tree*, a look at *process*, with its Python threads and what they wait for."""
        own, now = tree.of(process.pid), time.monotonic()
        if not NEEDED or not own:
            return tree
        whole = own[0] if own[0].thread == process.pid else None
        """The process, where single threads are not seen."""
        self._note(own, process.stacks, now, whole)
        seen = {state.thread: state for state in own}
        states = []
        for stack in self._stacks:
            native = process.natives.get(stack.ident, stack.ident)
            if (state := whole or seen.pop(native, None)) is not None:
                still = self._moved[state.thread] < self._dumped
                mark = state.ticks - self._own[0], state.switches - self._own[1]
                states.append(_described(replace(state, thread=native), mark, stack, process, still=still, now=now))
        if not states:
            return tree
        unknown = whole is None and len(seen) > _WRITERS
        rest = [ThreadState(process.pid, 0, "not Python's", "?", 0, 0)] if unknown else []
        return TreeState((*states, *rest, *(state for state in tree.threads if state.pid != process.pid)))

    def _note(self, own: tuple[ThreadState, ...], path: Path, now: float, whole: ThreadState | None) -> None:
        """Which threads have run since the last look, and whether stacks were written."""
        try:
            size = path.stat().st_size
        except OSError:
            size = 0
        dumped, self._size = size != self._size, size
        for state in own:
            before = self._marks.get(state.thread)
            mark = self._marks[state.thread] = (state.ticks, state.switches)
            if whole and dumped and before is not None and mark[0] - before[0] <= _DUMP_TICKS:
                self._own = self._own[0] + mark[0] - before[0], self._own[1] + mark[1] - before[1]
            elif before != mark:
                self._moved[state.thread] = now
        if dumped:
            self._stacks, self._dumped = parse_dump(last_stacks(path)).threads, now


def _described(
    state: ThreadState, mark: tuple[int, int], stack: ThreadStack, process: TestProcess, *, still: bool, now: float
) -> ThreadState:
    """*state* with what is known of the thread's wait: by its stack, if it is *still* where that shows it, or by the
    sleep that it has begun."""
    is_main = state.thread == process.main
    until = process.counters.sleeps_until(main=is_main)
    state = replace(state, ticks=mark[0], switches=mark[1] + int(until * 1e6))  # another sleep is a move
    call, endless = wait_of(stack.frames) if still else ("?", False)
    if call == LOCK and stack.ident in process.lock_waits:
        endless = process.lock_waits[stack.ident].endless
    if until > now and (is_main or call == SLEEP):
        return replace(state, state="S", call=SLEEP, until=until)
    return replace(state, state="S", call=call, endless=endless) if still else state

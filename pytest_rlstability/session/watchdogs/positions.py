"""Where the threads of a test are, and whether they leave that place: a loop without end stays on a few lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pytest_rlstability.osinfo.threads import ThreadState

BUSY_TICKS = 3
"""Ticks of processor time since the last look that need no closer look to be called progress."""
_FEW_LINES = 3
"""How many lines of one function may take turns in a thread that stays where it is."""
_NEWEST_LINE = re.compile(r'^  File ".*", line (\d+) in .*$', re.MULTILINE)


class Positions:
    """Where the threads of a test were when they were last asked."""

    def __init__(self) -> None:
        self._asked_at = 0.0
        self._ticks: dict[int, int] | None = None
        self._places: dict[int, tuple[str, set[str]]] = {}
        self.text = ""
        """The newest line of the first thread that answered last."""

    def are_due(self, stood: float, every: float) -> bool:
        """Whether to ask again, after *stood* seconds without progress."""
        if stood < self._asked_at:
            self._asked_at = 0.0
        due = stood - self._asked_at >= every
        if due:
            self._asked_at = stood
        return due

    def working(self, threads: Iterable[ThreadState]) -> set[int]:
        """The threads that have used processor time since the last call; of the first call, none."""
        before, self._ticks = self._ticks, {thread.thread: thread.ticks for thread in threads}
        if before is None:
            return set()
        return {thread for thread, ticks in self._ticks.items() if ticks - before.get(thread, 0) >= BUSY_TICKS}

    def changed(self, stacks: Mapping[int, str]) -> bool:
        """Whether a thread has left the place where it was when it was asked before: the same calls, and a few lines of
        the innermost function. The end of a stack may be missing.

        >>> where = Positions()
        >>> stack = '  File "a.py", line {} in wait'
        >>> [where.changed({7: stack.format(line)}) for line in (3, 4, 3, 3, 5, 9)]
        [False, False, False, False, False, True]
        """
        newest = {thread: match for thread, stack in stacks.items() if (match := _NEWEST_LINE.search(stack))}
        self.text = next((match[0].strip() for match in newest.values()), self.text)
        left = [thread for thread, match in newest.items() if self._has_left(thread, stacks[thread], match)]
        return bool(left)

    def _has_left(self, thread: int, stack: str, newest: re.Match[str]) -> bool:
        place = stack[: newest.start(1)] + stack[newest.end(1) :]
        before, lines = self._places.get(thread, (place, set()))
        lines.add(newest[1])
        left = len(lines) > _FEW_LINES or not (before.startswith(place) or place.startswith(before))
        self._places[thread] = (place, {newest[1]} if left else lines)
        return left

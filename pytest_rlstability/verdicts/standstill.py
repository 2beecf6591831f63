"""What counts as progress between two looks at a test: the rules of the stall watchdog, as pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_rlstability.osinfo.threads import ThreadState, TreeState

_BACKGROUND_PATIENCE = 3
"""How many times longer a test may stand still whose main thread waits while a daemon thread is active: that may be a
metrics thread, or the work that the main thread waits for. Not when only another process can end the wait."""
_STARVED_PATIENCE = 2
"""How many times longer a test with heartbeats may be silent on a machine that does not let it run."""
RUNNING = ("R", "D")
"""Running, ready to run, or waiting for the disk: all of these are progress."""


@dataclass(frozen=True)
class Look:
    """One look. *gap* is what counts of the time since the last look; *mark* changes with every phase and heartbeat."""

    gap: float
    mark: tuple[object, ...] = ()
    beating: bool = False
    tree: TreeState = field(default_factory=TreeState)
    main: int = 0
    background: frozenset[int] = frozenset()
    """Threads that nothing waits for: daemons, and while the interpreter exits all but the main one."""
    starved: float = 0.0
    outside: bool = False
    """Whether only another process could end what the main thread waits for."""
    busy: bool = False
    """So much processor time was used that the threads were not read."""


class Standstill:
    """Adds up for how many seconds nothing has moved, by several measures.

    ``still``: no progress, which is a heartbeat in a test that has them and any activity in another. ``silent``: the
    same, with the time in which the machine did not let the test run. ``quiet``: no activity at all. ``main_asleep``:
    the main thread sleeps. ``main_still``: it waits without a timeout. ``background``: it waits without a timeout, and
    no other thread is active but those that nothing waits for.

    >>> state = Standstill(after=3.0)
    >>> for beats in (1, 2, 2, 2):
    ...     state.note(Look(gap=1.0, mark=("call", beats), beating=True, busy=True))
    >>> state.still, state.is_over
    (2.0, False)
    """

    def __init__(self, after: float) -> None:
        self._after = after
        self._mark: tuple[object, ...] | None = None
        self._marks: frozenset[tuple[int, int, int, int]] = frozenset()
        self._patience = _BACKGROUND_PATIENCE
        self.still = self.silent = self.quiet = self.main_asleep = self.main_still = self.background = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the test has stood still for too long."""
        if self.still >= self._after or self.silent >= self._after * _STARVED_PATIENCE:
            return True
        return self.background >= self._after * self._patience

    def note(self, look: Look) -> None:
        active = {thread for thread in look.tree.threads if self._has_moved(thread)}
        moved = look.busy or bool(active) or self._threads_changed(look.tree)
        self._marks = look.tree.activity
        self.quiet = 0.0 if moved else self.quiet + look.gap
        main = next((thread for thread in look.tree.threads if thread.thread == look.main), None)
        asleep = main is not None and main not in active and main.asleep and not look.busy
        self.main_asleep = self.main_asleep + look.gap if asleep else 0.0
        waiting = asleep and main is not None and main.untimed
        self.main_still = self.main_still + look.gap if waiting else 0.0
        ticking = all(thread.pid == look.main and thread.thread in look.background for thread in active)
        self.background = self.background + look.gap if waiting and ticking else 0.0
        self._patience = 1 if look.outside else _BACKGROUND_PATIENCE
        self._note_progress(look, moved)

    def _note_progress(self, look: Look, moved: bool) -> None:
        marked, self._mark = look.mark != self._mark, look.mark
        if marked:
            self.background = 0.0
        if marked or (moved and not look.beating):
            self.still = self.silent = 0.0
            return
        self.still += look.gap * (1.0 - look.starved)
        self.silent += look.gap

    def _has_moved(self, thread: ThreadState) -> bool:
        return thread.state in RUNNING or thread.mark not in self._marks

    def _threads_changed(self, tree: TreeState) -> bool:
        before = {(mark[0], mark[1]) for mark in self._marks}
        return before != {(thread.pid, thread.thread) for thread in tree.threads}

"""What counts as progress, from one look at a test to the next: the rules of the stall judge, without a process."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_rlstability.evidence.processes import ThreadState, TreeState

_BACKGROUND_PATIENCE = 3
"""How many times longer a test may stand whose main thread waits while a daemon thread ticks: the tick may be a
metrics thread's, or the work that the main thread waits for. Not so if what it waits for is another process's to do."""
_STARVED_PATIENCE = 2
"""How many times longer a beating test may be silent on a machine that does not let it run."""
RUNNING = ("R", "D")
"""Running, ready to run, or waiting for the disk: on its way, if slowly."""


@dataclass(frozen=True)
class Look:
    """One look. *gap* is the time since the last that counts, *mark* changes with every phase and beat."""

    gap: float
    mark: tuple[object, ...] = ()
    beating: bool = False
    tree: TreeState = field(default_factory=TreeState)
    main: int = 0
    background: frozenset[int] = frozenset()
    """Threads nobody waits for: daemons, and while the interpreter ends all but the main one."""
    starved: float = 0.0
    outside: bool = False
    """Whether only another process could end what the main thread waits for."""
    busy: bool = False
    """Processor time was used, so much that nobody looked closer."""


class Standstill:
    """Adds up how long nothing has moved, by several measures.

    ``still``: without progress, which is a beat in a beating test and any activity in another. ``quiet``: without any
    activity. ``main_asleep``: without any of the main thread. ``main_still``: the same, in a wait without a timeout.
    ``silent``: as ``still``, whoever kept the test from running. ``background``: as ``main_still``, with none active
    beside it but threads that nobody waits for.

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
        """Whether the test has stood still for as long as it may."""
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

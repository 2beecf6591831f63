"""STALL: a run that made no progress. What counts as progress, its class, and what each thread waits for."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_rlstability.model.run import Run
from pytest_rlstability.model.stack_dump import Frame, StackDump, WaitingTask, is_event_loop, parse_dump
from pytest_rlstability.model.verdict import StallClass, Verdict, Word
from pytest_rlstability.osinfo.threads import MULTIPLEXERS, SLEEPS, ThreadState, TreeState
from pytest_rlstability.verdicts.crash import build_verdict, place_of, workers_text

_MOST_THREADS = 100
"""faulthandler writes no more than this."""
_LOCK_OR_CHILD = ("futex", "wait4", "waitid")
_INTERPRETERS_WAIT = re.compile(
    r"\s*(?:_*(?:GI_)*(?:new_)?sem_|__futex|_*PyThread|acquire_timed|lock_PyThread|r?lock_|do_futex|_*(?:internal_)?syscall|"
    r"_*(?:GI_+)?(?:clock_)?nanosleep|pysleep|time_sleep|_*(?:clone|start_thread)|thread_(?:run|PyThread))"
)
_TICKING = 1 / 3
"""How fast the time of a standstill runs while something only ticks: a loop that sleeps, a thread that polls. That may
be a metrics thread, or the work that the main thread waits for."""
_BUSY_WORTH = 20
"""How much standstill a busy look makes up for: a thread that computes in one look of twenty is at work."""
SPIN = 5
"""How many times the limit a test may compute, in processor time, without its threads leaving the lines they are on."""
_LONG_WAITS = 4
"""How many long waits of one thread count as having their end in sight before they count as polling."""
_IN_SIGHT = 30
"""How many times the limit a wait may take for its end to be in sight."""
_BACKGROUND = 10
"""The same for a daemon that the main thread may wait for. Housekeeping takes longer."""
_STARVED_PATIENCE = 2
"""How many times longer a test with heartbeats may be silent on a machine that does not let it run."""
RUNNING = ("R", "D")
"""Running, ready to run, or waiting for the disk: none of these stands still."""


@dataclass(frozen=True)
class Look:
    """One look. *gap* is what counts of the time since the last look; *mark* changes with every phase and heartbeat."""

    gap: float
    mark: tuple[object, ...] = ()
    beating: bool = False
    tree: TreeState = field(default_factory=TreeState)
    main: int = 0
    now: float = 0.0
    starved: float = 0.0
    outside: bool = False
    """Whether only another process could end what the main thread waits for."""
    busy: bool = False
    """Much processor time was used; the threads may not have been read then."""
    cpu: float = 0.0
    """Seconds of processor time since the last look."""
    daemons: Collection[int] = ()
    """The threads that are daemons."""


class Standstill:
    """Adds up for how long nothing has come of a test, by several measures.

    ``still``: no progress, by the clock. ``idle``: the same, counted slowly, because something ticks now and then.
    ``frozen``: nothing has even ticked, and no wait ends by itself. ``silent``: no heartbeat in a test that has them,
    with the time in which the machine did not let it run. ``quiet``: no activity at all. ``main_asleep``: the main
    thread sleeps. ``main_still``: it waits without a timeout. ``spun``: processor time since a thread was last seen on
    another line (``moved_on``).

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
        self._long_waits: dict[int, set[tuple[int, float | None]]] = {}
        self.still = self.idle = self.frozen = self.silent = self.quiet = 0.0
        self.main_asleep = self.main_still = self.spun = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the test has stood still for too long."""
        return self.gone >= 1.0 or self.silent >= self._after * _STARVED_PATIENCE

    @property
    def gone(self) -> float:
        """How much of the time is gone that the test may take without progress."""
        return max(self.idle, self.frozen, self.spun / SPIN) / self._after

    @property
    def spins(self) -> bool:
        return self.spun >= self._after * SPIN

    def moved_on(self) -> None:
        """A thread that computes or polls is not where it was: that is progress, if there are no heartbeats."""
        self.spun = self.idle = self.frozen = self.still = 0.0

    def note(self, look: Look) -> None:
        active = {thread for thread in look.tree.threads if self._has_moved(thread)}
        changed = self._threads_changed(look.tree)
        moved = look.busy or bool(active) or changed
        self._marks = look.tree.activity
        self.quiet = 0.0 if moved else self.quiet + look.gap
        main = next((thread for thread in look.tree.threads if thread.thread == look.main), None)
        asleep = main is not None and main not in active and main.asleep
        self.main_asleep = self.main_asleep + look.gap if asleep else 0.0
        waiting = asleep and main is not None and main.untimed
        self.main_still = self.main_still + look.gap if waiting else 0.0
        marked, self._mark = look.mark != self._mark, look.mark
        if marked or (changed and not look.beating):
            self.still = self.idle = self.frozen = self.silent = self.spun = 0.0
            self._long_waits.clear()
        elif look.beating:
            self.still += look.gap
            self.idle += look.gap * (1.0 - look.starved)
            self.silent += look.gap
        elif look.busy:
            self.frozen = 0.0
            self.idle = max(0.0, self.idle - look.gap * _BUSY_WORTH)
            self.still = self.still + look.gap if self.idle else 0.0
            self.spun += min(look.cpu, look.gap)  # many threads do not make a long call longer
        else:
            self.still += look.gap
            self._stand(look, main, ticking=bool(active), waiting=waiting)

    def _stand(self, look: Look, main: ThreadState | None, *, ticking: bool, waiting: bool) -> None:
        """Nothing computes: how much of this look counts as standstill?"""
        if any(thread.state in RUNNING for thread in look.tree.threads) or self._end_is_in_sight(look, main):
            self.frozen = 0.0
        elif waiting and look.outside:
            self.frozen = self.main_still
        else:
            timed = main is not None and main.asleep and not main.untimed and main.call != "?"
            self.idle += look.gap * _TICKING
            self.frozen = 0.0 if ticking or timed else self.frozen + look.gap

    def _end_is_in_sight(self, look: Look, main: ThreadState | None) -> bool:
        """Whether the main thread is in one long wait that ends by itself, or waits for a thread or process that is."""
        if main is None:
            return False
        if main.until is not None:
            return self._ends(main, look.now, sys.maxsize if main.call in SLEEPS else _LONG_WAITS)
        own = look.tree.of(main.pid)
        # A thread of its own process may be what waits for another process.
        waits_for_others = any(one.untimed and (one.call != "futex" or one.futex is not None) for one in own)
        others = [one for one in look.tree.threads if one.pid != main.pid] if waits_for_others else []
        ends = [self._ends(one, look.now, _LONG_WAITS) for one in others]
        for one in own if main.call in ("futex", *MULTIPLEXERS) else ():
            is_daemon = one.thread in look.daemons
            ends.append(self._ends(one, look.now, 1, _BACKGROUND if is_daemon else _IN_SIGHT))
        return any(ends)

    def _ends(self, thread: ThreadState, now: float, times: int, sight: int = _IN_SIGHT) -> bool:
        """Whether the thread's wait is long and ends by itself, within *sight* times the limit. That counts so many
        *times*: a loop may begin it again and again."""
        waits = self._long_waits.setdefault(thread.thread, set())
        wait = (thread.switches, thread.until)
        if thread.until is None or now > thread.until:
            return False
        if wait not in waits:
            if len(waits) >= times or not 0.5 <= (thread.until - now) / self._after < sight:
                return False
            waits.add(wait)
        return True

    def _has_moved(self, thread: ThreadState) -> bool:
        return thread.state in RUNNING or thread.mark not in self._marks

    def _threads_changed(self, tree: TreeState) -> bool:
        before = {(mark[0], mark[1]) for mark in self._marks}
        return bool(self._marks and tree.threads) and before != {(thread.pid, thread.thread) for thread in tree.threads}


def classify(tree: TreeState, *, active: bool, shared: bool = False) -> StallClass:
    """The class of a standstill from the state of every thread."""
    if not tree.threads or all(thread.state == "?" for thread in tree.threads):
        return StallClass.SPINNING if active else StallClass.UNKNOWN
    if any(thread.state in "Tt" for thread in tree.threads):
        return StallClass.BLOCKED
    if active:
        return StallClass.SPINNING
    if not shared and is_deadlock(tree):
        return StallClass.DEADLOCK
    return StallClass.BLOCKED


def is_deadlock(tree: TreeState) -> bool:
    """Whether every thread of the tree waits without a timeout for a lock, or for a child, and one for a lock."""
    return any(thread.call == "futex" for thread in tree.threads) and all(
        thread.asleep and thread.endless and thread.call in _LOCK_OR_CHILD for thread in tree.threads
    )


def _unsafe_fork(run: Run) -> str:
    reason = run.spec.unsafe_fork
    return f"its process was forked although {reason}; --rl-backend=auto starts one that has its own" if reason else ""


def _missing_cycle(run: Run, kind: str) -> str:
    """What would show more of a deadlock whose locks are not known."""
    facts = {} if run.ending.killed is None else run.ending.killed.facts
    known = any(facts.get(name) for name in ("cycle", "waits", "shared_lock", "ended")) or run.seen.waiting_tasks
    if kind != StallClass.DEADLOCK or known or run.spec.is_script or run.spec.unsafe_fork:
        return ""
    return "The fixture rl_locks would show which thread holds which lock, and the cycle of those that wait."


def judge_stall(run: Run) -> Verdict | None:
    """STALL when the supervisor ended the test because it stood still, or ran over its timeout."""
    killed = run.ending.killed
    if killed is None or killed.reason not in ("stall", "timeout"):
        return None
    facts = killed.facts
    kind = str(facts.get("class", StallClass.UNKNOWN))
    dump = _main_first(parse_dump(run.ending.dump, run.ending.thread_names))
    tasks = [WaitingTask.of(task) for task in run.seen.waiting_tasks]
    frames, place = _place(run, dump, tasks)
    return build_verdict(
        run,
        Word.STALL,
        f"{kind}, {killed.detail}, {place}",
        cause=f"stall {kind}",
        frames=frames,
        first=[
            ("", _unsafe_fork(run)),
            ("", str(facts.get("hint", "")) or _missing_cycle(run, kind)),
            ("Dead workers", _dead_workers(run, facts)),
            ("Locked database", str(facts.get("database", ""))),
            ("Waiting tasks", "\n".join(task.render() for task in tasks)),
            ("Wait-for cycle", str(facts.get("cycle", ""))),
            ("Waits for locks", str(facts.get("waits", ""))),
        ],
        more=[
            ("Threads", str(facts.get("threads", ""))),
            ("Python stacks", dump.render()),
            ("Worker stacks", str(facts.get("worker_stacks", ""))),
            ("Native stack", telling_native(run.ending.native_stack)),
        ],
        facts={"class": kind, "limit": killed.limit},
    )


def _dead_workers(run: Run, facts: dict[str, Any]) -> str:
    """The processes of the test that a signal has ended, and what the test may wait for on their account."""
    known = run.seen.dead_workers
    others = [f"pid {pid}: {signal}" for pid, signal in facts.get("ended", {}).items() if pid not in known]
    lines = [line for line in (workers_text(run), *others) if line]
    if lines and facts.get("shared_lock"):
        lines.append("The test waits for a lock of multiprocessing. If one of them held it, it is never released.")
    return "\n".join(lines)


def _place(run: Run, dump: StackDump, tasks: Sequence[WaitingTask]) -> tuple[tuple[Frame, ...], str]:
    """The frames that show where the test is, and its place in words: those of the main thread, or of what that only
    waits for, the tasks of its event loop or, at exit, a thread."""
    frames, place = _main_frames(dump), place_of(run)
    if tasks and is_event_loop(frames):
        return tasks[0].frames, f"{place}, in {tasks[0].title}"
    if run.seen.phase == "exit" and not any(frame.is_users for frame in frames):
        for thread in dump.threads[1:]:
            if any(frame.is_users for frame in thread.own_frames):
                return thread.own_frames, f"{place}, waiting for thread {thread.name}"
    return frames, place


def _main_frames(dump: StackDump) -> tuple[Frame, ...]:
    """The frames of the main thread; none if it is not among the threads that faulthandler had room for."""
    if not dump.threads or (len(dump.threads) >= _MOST_THREADS and dump.threads[0].name != "MainThread"):
        return ()
    return dump.threads[0].own_frames


def _main_first(dump: StackDump) -> StackDump:
    """*dump* with the main thread, where the test is, first: faulthandler writes it last."""
    return replace(dump, threads=tuple(sorted(dump.threads, key=lambda thread: thread.name != "MainThread")))


def telling_native(text: str) -> str:
    """The native frames of each thread, and the Python line that called them. Leaves out threads that only wait in the
    interpreter's own locks and sleeps: the Python stacks show those."""
    blocks: list[list[str]] = []
    rest: list[str] = []
    for line in text.splitlines():
        if line.startswith("thread "):
            blocks.append([line])
        elif line.startswith("  ") and blocks:
            blocks[-1].append(line)
        else:
            rest.append(line)
    shown = [kept for title, *frames in blocks if (kept := _telling_frames(title, frames))]
    if not shown and (blocks or text == "(off)"):
        return ""
    return "\n".join(line for block in [*shown, rest] for line in block)


def _telling_frames(title: str, frames: list[str]) -> list[str]:
    """The lines of one thread; none when all its native frames are the interpreter's way to wait."""
    python = next((index for index, frame in enumerate(frames) if frame.endswith("[Python]")), len(frames))
    native = frames[:python]
    if all(_INTERPRETERS_WAIT.match(frame) for frame in native):
        return []
    return [title, *native, *frames[python : python + 1]]


def thread_lines(tree: TreeState, words: dict[int, str], names: dict[int, str]) -> str:
    """One line per thread: its name, its state, what it waits for."""
    return "\n".join(
        f"pid {one.pid} thread {names.get(one.thread) or one.name}: {one.state}, {words[one.thread]}"
        for one in tree.threads
    )

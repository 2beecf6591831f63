"""STALL: a run that made no progress. Its class, and what each thread waits for."""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_rlstability.model.run import Run
from pytest_rlstability.model.stack_dump import Frame, StackDump, parse_dump
from pytest_rlstability.model.verdict import StallClass, Verdict, Word
from pytest_rlstability.osinfo.threads import TreeState
from pytest_rlstability.verdicts.crash import build_verdict, place_of

_MOST_THREADS = 100
"""faulthandler writes no more than this."""
_LOCK_OR_CHILD = ("futex", "wait4", "waitid")
_INTERPRETERS_WAIT = re.compile(
    r"\s*(?:_*(?:GI_)*(?:new_)?sem_|__futex|_*PyThread|acquire_timed|lock_PyThread|r?lock_|do_futex|syscall|"
    r"_*(?:GI_+)?(?:clock_)?nanosleep|pysleep|time_sleep|_*(?:clone|start_thread)|thread_(?:run|PyThread))"
)


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


def judge_stall(run: Run) -> Verdict | None:
    """STALL when the supervisor ended the test because it stood still, or ran over its timeout."""
    killed = run.ending.killed
    if killed is None or killed.reason not in ("stall", "timeout"):
        return None
    facts = killed.facts
    kind = str(facts.get("class", StallClass.UNKNOWN))
    dump = _main_first(parse_dump(run.ending.dump, run.ending.thread_names))
    return build_verdict(
        run,
        Word.STALL,
        f"{kind}, {killed.detail}, {place_of(run)}",
        cause=f"stall {kind}",
        frames=_main_frames(dump),
        first=[
            ("", str(facts.get("hint", ""))),
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

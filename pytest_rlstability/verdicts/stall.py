"""A run that made no progress: what kind of standstill it is, and what waits for what."""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_rlstability.events import Verdict
from pytest_rlstability.evidence.processes import ThreadState, TreeState
from pytest_rlstability.evidence.stacks import Frame, StackDump, parse_dump
from pytest_rlstability.facts import Run
from pytest_rlstability.verdicts.crash import (
    place_of,
    present,
    process_text,
    shared_facts,
    signature,
    stages_text,
    where,
)

_MOST_THREADS = 100
"""That faulthandler writes."""
_CHILD_WAITS = ("wait4", "waitid")
_INTERPRETERS_WAIT = re.compile(
    r"\s*(?:_*(?:GI_)*(?:new_)?sem_|__futex|_*PyThread|acquire_timed|lock_PyThread|r?lock_|do_futex|syscall|"
    r"_*(?:GI_+)?(?:clock_)?nanosleep|pysleep|time_sleep|_*(?:clone|start_thread)|thread_(?:run|PyThread))"
)


def classify(tree: TreeState, *, active: bool, shared: bool = False) -> str:
    """The class of a standstill from the state of every thread.

    deadlock: every thread waits without end for something only another of them could give; blocked: something
    outside, or stopped, or asleep; spinning: processor time or context switches, and no beat; unknown: this
    platform does not tell.
    """
    if not tree.threads or all(thread.state == "?" for thread in tree.threads):
        return "spinning" if active else "unknown"
    if any(thread.state in "Tt" for thread in tree.threads):
        return "blocked"
    if active:
        return "spinning"
    if not shared and is_deadlock(tree):
        return "deadlock"
    return "blocked"


def is_deadlock(tree: TreeState) -> bool:
    """Every thread of the tree in an endless wait for a lock, or for a process of the tree that is."""
    return any(thread.call == "futex" for thread in tree.threads) and all(
        thread.asleep and thread.endless and (thread.call == "futex" or thread.call in _CHILD_WAITS)
        for thread in tree.threads
    )


def judge_stall(run: Run) -> Verdict | None:
    """STALL when the supervisor ended the test because it stood still, or ran over its timeout."""
    if run.killed is None or run.killed.reason not in ("stall", "timeout"):
        return None
    facts = run.killed.facts
    kind = str(facts.get("class", "unknown"))
    dump = _main_first(parse_dump(run.dump, run.threads))
    frames = _main_frames(dump)
    return Verdict(
        "STALL",
        f"{kind}, {run.killed.detail}, {place_of(run)}",
        sections=present(
            ("", where(frames)),
            ("", str(facts.get("hint", ""))),
            ("Wait-for cycle", str(facts.get("cycle", ""))),
            ("Waits for locks", str(facts.get("waits", ""))),
            ("Stages", stages_text(run)),
            ("Memory", run.memory.text()),
            ("Threads", str(facts.get("threads", ""))),
            ("Python stacks", dump.render()),
            ("Worker stacks", str(facts.get("worker_stacks", ""))),
            ("Native stack", telling_native(run.native)),
            ("Process", process_text(run)),
        ),
        facts={
            "class": kind,
            "limit": run.killed.limit,
            "signature": signature(f"stall {kind}", run.phase, frames),
            **shared_facts(run),
        },
    )


def _main_frames(dump: StackDump) -> tuple[Frame, ...]:
    """Where the main thread stands; nothing if it is not among the threads that faulthandler had room for."""
    if not dump.threads or (len(dump.threads) >= _MOST_THREADS and dump.threads[0].name != "MainThread"):
        return ()
    return dump.threads[0].own_frames


def _main_first(dump: StackDump) -> StackDump:
    """The main thread is where the test stands; faulthandler writes it last."""
    return replace(dump, threads=tuple(sorted(dump.threads, key=lambda thread: thread.name != "MainThread")))


def telling_native(text: str) -> str:
    """The native frames that the Python stacks do not show already, with the Python line that led to each; threads
    that only wait in the interpreter's own locks and sleeps are left out."""
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
    """None of the frames when all the native ones are the interpreter's way to wait."""
    python = next((index for index, frame in enumerate(frames) if frame.endswith("[Python]")), len(frames))
    native = frames[:python]
    if all(_INTERPRETERS_WAIT.match(frame) for frame in native):
        return []
    return [title, *native, *frames[python : python + 1]]


def thread_lines(tree: TreeState, words: dict[int, str], names: dict[int, str]) -> str:
    """One line a thread: who it is, its state, what it waits for."""
    return "\n".join(
        f"pid {thread.pid} {_thread_name(thread, names)}: {thread.state}, {words[thread.thread]}"
        for thread in tree.threads
    )


def _thread_name(thread: ThreadState, names: dict[int, str]) -> str:
    return f"thread {names.get(thread.thread) or thread.name}"

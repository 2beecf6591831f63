"""A run that made no progress: what kind of standstill it is, and what waits for what."""

from __future__ import annotations

from pytest_rlstability.events import Verdict
from pytest_rlstability.evidence.processes import ThreadState, TreeState
from pytest_rlstability.evidence.stacks import parse_dump
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

_CHILD_WAITS = ("wait4", "waitid")


def classify(tree: TreeState, *, active: bool, shared_memory: bool = False) -> str:
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
    if not shared_memory and is_deadlock(tree):
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
    dump = parse_dump(run.dump, run.threads)
    frames = dump.threads[0].own_frames if dump.threads else ()
    return Verdict(
        "STALL",
        f"{kind}, {run.killed.detail}, {place_of(run)}",
        sections=present(
            ("", where(frames)),
            ("", str(facts.get("hint", ""))),
            ("Wait-for cycle", str(facts.get("cycle", ""))),
            ("Stages", stages_text(run)),
            ("Threads", str(facts.get("threads", ""))),
            ("Python stacks", dump.render()),
            ("Worker stacks", str(facts.get("worker_stacks", ""))),
            ("Native stack", run.native),
            ("Process", process_text(run)),
        ),
        facts={
            "class": kind,
            "limit": run.killed.limit,
            "signature": signature(f"stall {kind}", run.phase, frames),
            **shared_facts(run),
        },
    )


def thread_lines(tree: TreeState, words: dict[int, str], names: dict[int, str]) -> str:
    """One line a thread: who it is, its state, what it waits for."""
    return "\n".join(
        f"pid {thread.pid} {_thread_name(thread, names)}: {thread.state}, {words[thread.thread]}"
        for thread in tree.threads
    )


def _thread_name(thread: ThreadState, names: dict[int, str]) -> str:
    return f"thread {names.get(thread.thread) or thread.name}"

"""The Python stacks of the processes a test started, and a well-known way for them to hang."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from pytest_rlstability.evidence.native import find_tool, native_stack
from pytest_rlstability.evidence.peers import process_name
from pytest_rlstability.evidence.processes import TreeState, is_helper
from pytest_rlstability.evidence.stacks import parse_dump
from pytest_rlstability.isolation.faults import STACKS_SIGNAL, worker_faults_path
from pytest_rlstability.isolation.kernel import command_of

_MOST_WORKERS = 8


def worker_stacks(own: int, tree: TreeState, directory: Path, native: str) -> str:
    """One block a worker process. Those the test forked write their stacks when asked, without the GIL; the Python of
    others is read from outside, where pystack is installed."""
    workers = [pid for pid in tree.pids if pid != own and not is_helper(pid)]
    blocks = []
    for pid in workers[:_MOST_WORKERS]:
        stopped = all(thread.state in ("T", "t") for thread in tree.of(pid))
        text = "" if stopped else _own_words(pid, directory)
        if not text and native != "off" and _is_python(pid) and find_tool("pystack") is not None:
            text = native_stack(pid, native)
        if text:
            blocks.append(f"{process_name(pid, own)}\n{text}")
    if len(workers) > _MOST_WORKERS:
        blocks.append(f"and {len(workers) - _MOST_WORKERS} more")
    return "\n".join(blocks)


def _own_words(pid: int, directory: Path) -> str:
    path = worker_faults_path(directory, pid)
    if STACKS_SIGNAL is None or not path.exists():
        return ""
    try:
        os.kill(pid, STACKS_SIGNAL)
    except ProcessLookupError:
        return ""
    return parse_dump(_wait_for_text(path)).render()


def _wait_for_text(path: Path) -> str:
    """What the process writes, once it has stopped writing; a process that cannot is not waited for long."""
    text = ""
    for _ in range(25):
        time.sleep(0.02)
        before, text = text, path.read_text(errors="replace")
        if text and text == before:
            break
    return text


def _is_python(pid: int) -> bool:
    return "python" in os.path.basename(command_of(pid).partition(" ")[0])


def fork_after_threads(own: int, tree: TreeState, native: str) -> str:
    """Words for a process that was forked from one whose native threads it now waits for; empty when there is none."""
    for pid in tree.pids:
        forked = pid != own and command_of(pid) == command_of(own)
        locked = all(thread.call == "futex" and thread.endless for thread in tree.of(pid))
        if forked and locked and _waits_in_openmp(pid, native):
            return (
                f"pid {pid} was forked after this process had used a native thread pool (OpenMP): the pool's threads "
                "do not exist in the fork, and its first parallel computation waits for them for ever. "
                "Start workers with 'spawn' or 'forkserver', or call torch.set_num_threads(1) in them first."
            )
    return ""


def _waits_in_openmp(pid: int, native: str) -> bool:
    """By its native stack where that can be had, else by the libraries it has loaded."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False
    if not any(name in maps for name in ("libgomp", "libomp", "libiomp")):
        return False
    stack = native_stack(pid, native)
    return stack.startswith("(") or re.search(r"gomp|GOMP|_omp|kmp", stack) is not None

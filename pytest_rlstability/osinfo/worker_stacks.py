"""The Python stacks of the processes that a test started, and a reason why a forked one may hang."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pytest_rlstability.model.stack_dump import parse_dump
from pytest_rlstability.osinfo.fatal_signals import ask_for_stacks, worker_faults_path
from pytest_rlstability.osinfo.linux import mappings
from pytest_rlstability.osinfo.native_stacks import find_tool, native_stack
from pytest_rlstability.osinfo.processes import command_of, is_helper, process_name
from pytest_rlstability.osinfo.threads import STOPPED, TreeState

_MOST_WORKERS = 8


def worker_stacks(own: int, tree: TreeState, directory: Path, native: str) -> str:
    """One block per worker process. Forked ones write their stacks when asked, without the GIL; the stacks of other
    Python processes are read by pystack, if it is installed."""
    workers = [pid for pid in tree.pids if pid != own and not is_helper(pid)]
    blocks = []
    for pid in workers[:_MOST_WORKERS]:
        stopped = all(thread.state in STOPPED for thread in tree.of(pid))
        text = "" if stopped else _written_stacks(pid, directory)
        if not text and native != "off" and _is_python(pid) and find_tool("pystack") is not None:
            text = native_stack(pid, native, python=True)
        if text:
            blocks.append(f"{process_name(pid, own)}\n{text}")
    if len(workers) > _MOST_WORKERS:
        blocks.append(f"and {len(workers) - _MOST_WORKERS} more")
    return "\n".join(blocks)


def _written_stacks(pid: int, directory: Path) -> str:
    path = worker_faults_path(directory, pid)
    return parse_dump(ask_for_stacks(pid, path)).render() if path.exists() else ""


def _is_python(pid: int) -> bool:
    return "python" in os.path.basename(command_of(pid).partition(" ")[0])


def fork_after_threads(own: int, tree: TreeState, native: str) -> str:
    """Explains a process that waits for native threads which its fork did not copy; empty when there is none."""
    for pid in tree.pids:
        forked = pid != own and command_of(pid) == command_of(own)
        locked = all(thread.call == "futex" and thread.endless for thread in tree.of(pid))
        if forked and locked and _waits_in_openmp(pid, native):
            return (
                f"pid {pid} was forked after this process had used a native thread pool (OpenMP): the pool's threads "
                "do not exist in the fork, and its first parallel computation never ends. "
                "Start workers with 'spawn' or 'forkserver', or call torch.set_num_threads(1) in them first."
            )
    return ""


def _waits_in_openmp(pid: int, native: str) -> bool:
    """Judged by its native stack if that can be read, else by the libraries that it has loaded."""
    if not any(re.search(rb"lib(g|i)?omp", mapping.path) for mapping in mappings(pid, having=b"omp")):
        return False
    stack = native_stack(pid, native)
    return stack.startswith("(") or re.search(r"gomp|GOMP|_omp|kmp", stack) is not None

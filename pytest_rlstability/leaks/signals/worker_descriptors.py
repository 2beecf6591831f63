"""File descriptors of child processes: what the workers of SubprocVecEnv and AsyncVectorEnv open and never close."""

from __future__ import annotations

import os

from pytest_rlstability.signals.proc import GONE, read_link, require_directory
from pytest_rlstability.signals.processes import descendants
from pytest_rlstability.signals.protocol import Signal


class WorkerDescriptors(Signal):
    """Counts what each worker has opened since it was first seen: a new worker is not growth."""

    name = "worker_fds"
    title = "descriptors of child processes"
    exact = True

    def __init__(self) -> None:
        require_directory("/proc/self/fd")
        self._seen: dict[int, int] = {}

    def read(self) -> float:
        alive = {pid: len(_open_in(pid)) for pid, state in descendants().items() if state not in "ZX"}
        self._seen = {pid: min(count, self._seen.get(pid, count)) for pid, count in alive.items()}
        return float(sum(count - self._seen[pid] for pid, count in alive.items()))

    def inventory(self) -> dict[str, str]:
        links = {
            (pid, name): read_link(f"/proc/{pid}/fd/{name}")
            for pid, state in descendants().items()
            if state not in "ZX"
            for name in _open_in(pid)
        }
        return {
            f"{pid} {name} {to}": f"descriptor {name} -> {to} of process {pid}"
            for (pid, name), to in links.items()
            if to != GONE
        }


def _open_in(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/fd")
    except OSError:  # it has just gone, or is another user's
        return []

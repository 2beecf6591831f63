"""File descriptors of child processes: what the workers of SubprocVecEnv and AsyncVectorEnv open and never close."""

from __future__ import annotations

from pytest_rlstability.leaks.signals.processes import children
from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo.linux import GONE, descriptor_target, descriptors_of, require_proc


class WorkerDescriptors(Signal):
    """Counts what each worker has opened since it was first seen, so that a new worker is not growth."""

    name = "worker_fds"
    title = "descriptors of child processes"
    exact = True

    def __init__(self) -> None:
        require_proc()
        self._seen: dict[int, int] = {}

    def read(self) -> float:
        alive = {pid: len(descriptors_of(pid)) for pid in children()}
        self._seen = {pid: min(count, self._seen.get(pid, count)) for pid, count in alive.items()}
        return float(sum(count - self._seen[pid] for pid, count in alive.items()))

    def inventory(self) -> dict[str, str]:
        return {
            f"{pid} {name} {to}": f"descriptor {name} -> {to} of process {pid}"
            for pid in children()
            for name in descriptors_of(pid)
            if (to := descriptor_target(pid, name)) != GONE
        }

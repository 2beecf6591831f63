"""Growth inside child processes: the workers of SubprocVecEnv and AsyncVectorEnv."""

from __future__ import annotations

from pytest_rlstability.leaks.signals.processes import children
from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo.linux import require_proc, touched_and_mapped
from pytest_rlstability.osinfo.processes import short_command


class WorkerMemory(Signal):
    """For each worker, the smaller of the growth of touched and of mapped memory since it was first seen.

    Touched memory also grows when a forked worker copies its parent's pages or fills an array it had reserved.
    Mapped memory grows in steps of a whole arena.
    """

    name = "workers"
    title = "memory of child processes"
    group = "memory"
    unit = "bytes"
    smallest = 2.0**20
    resolution = 256.0
    ceiling = 2**30

    def __init__(self) -> None:
        require_proc()
        self._seen: dict[int, tuple[int, int]] = {}

    def read(self) -> float:
        return float(sum(map(self._growth, children())))

    def _growth(self, pid: int) -> int:
        memory = touched_and_mapped(pid)
        if memory is None:
            return 0
        touched, mapped = memory
        touched_first, mapped_first = self._seen.setdefault(pid, (touched, mapped))
        return max(0, min(touched - touched_first, mapped - mapped_first))

    def inventory(self) -> dict[str, str]:
        return {
            f"{pid} {size}": f"process {pid} grew by {size // 1024} KiB since it was first seen: {short_command(pid)}"
            for pid in children()
            if (size := self._growth(pid))
        }

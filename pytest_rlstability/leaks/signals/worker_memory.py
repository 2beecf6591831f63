"""Growth inside child processes: the workers of SubprocVecEnv and AsyncVectorEnv."""

from __future__ import annotations

from pytest_rlstability.signals.proc import PAGE, read_bytes, require_directory
from pytest_rlstability.signals.processes import command_of, descendants
from pytest_rlstability.signals.protocol import Signal


class WorkerMemory(Signal):
    """Counts what is both newly mapped and touched since a worker was first seen.

    Touched alone also grows when a forked worker copies its parent's pages or fills an array it had reserved;
    mapped alone grows in steps of a whole arena. The smaller of the two is neither.
    """

    name = "workers"
    title = "memory of child processes"
    unit = "bytes"
    smallest = 2.0**20
    resolution = 256.0
    ceiling = 2**30

    def __init__(self) -> None:
        require_directory("/proc/self")
        self._seen: dict[int, tuple[int, int]] = {}

    def read(self) -> float:
        return float(sum(self._growth(pid) for pid, state in descendants().items() if state not in "ZX"))

    def _growth(self, pid: int) -> int:
        fields = read_bytes(f"/proc/{pid}/statm").split()
        if len(fields) < 6:
            return 0
        touched, mapped = (int(fields[1]) - int(fields[2])) * PAGE, int(fields[5]) * PAGE
        touched_first, mapped_first = self._seen.setdefault(pid, (touched, mapped))
        return max(0, min(touched - touched_first, mapped - mapped_first))

    def inventory(self) -> dict[str, str]:
        grown = {pid: self._growth(pid) for pid, state in descendants().items() if state not in "ZX"}
        return {
            f"{pid} {size}": f"process {pid} grew by {size // 1024} KiB since it was first seen: {command_of(pid)}"
            for pid, size in grown.items()
            if size
        }

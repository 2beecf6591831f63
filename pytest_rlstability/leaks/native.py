"""Native stacks of what was allocated and not freed, from memray if it is installed."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from typing import Any

from pytest_rlstability.leaks.lines import Line
from pytest_rlstability.model.user_code import Origin, origin

DEEPEST = 6


class NativeTracer:
    """Records allocations between ``start()`` and ``stop()``. ``stack(laps)`` finds the largest that stayed, and sets
    *line* to the user's line that led to it."""

    def __init__(self) -> None:
        import memray

        self._memray = memray
        self._directory = tempfile.mkdtemp(prefix="rlstability-memray-")
        self._path = os.path.join(self._directory, "window.bin")
        self._tracker: Any = None
        self.line: Line | None = None

    def start(self) -> None:
        self._tracker = self._memray.Tracker(self._path, native_traces=True)
        self._tracker.__enter__()

    def stop(self) -> None:
        self._tracker.__exit__(None, None, None)

    def stack(self, laps: int) -> list[str]:
        """Frames, innermost first, of the largest allocation that at least every tenth lap left behind."""
        leaked = self._memray.FileReader(self._path).get_leaked_allocation_records(merge_threads=True)
        records = [record for record in leaked if record.n_allocations >= max(2, laps // 10)]
        for record in sorted(records, key=lambda record: -record.size):
            frames = [f"{name} ({file}:{line})" for name, file, line in record.hybrid_stack_trace(DEEPEST * 4)]
            lines = [(file, line) for _, file, line in record.stack_trace(DEEPEST * 4)]
            self.line = next((line for line in lines if origin(line[0]) is Origin.USER), None)
            if self.line is not None:
                return frames[:DEEPEST]
        return []

    def close(self) -> None:
        shutil.rmtree(self._directory)


def native_tracer() -> NativeTracer | None:
    """A tracer, or None where memray is not installed or would take half a minute to name libtorch's functions."""
    if "torch" in sys.modules:
        return None
    try:
        return NativeTracer()
    except ImportError:
        return None

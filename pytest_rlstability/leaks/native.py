"""Native stacks of what was allocated and not freed, by memray where it is installed."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

from pytest_rlstability.leaks.lines import Line, is_users

DEEPEST = 6


class NativeTracer:
    """Records allocations between ``start()`` and ``stop()``; ``stack(laps)`` is the largest that stayed each lap.

    *line* is then the user's line that led to it.
    """

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
        reader = self._memray.FileReader(self._path)
        records = [
            record
            for record in reader.get_leaked_allocation_records(merge_threads=True)
            if record.n_allocations >= max(2, laps // 10)
        ]
        for record in sorted(records, key=lambda record: -record.size):
            frames = [f"{name} ({file}:{line})" for name, file, line in record.hybrid_stack_trace(DEEPEST * 4)]
            lines = ((file, line) for _, file, line in record.stack_trace(DEEPEST * 4) if is_users(file))
            self.line = next(lines, None)
            if self.line is not None:
                return frames[:DEEPEST]
        return []

    def close(self) -> None:
        for name in os.listdir(self._directory):
            os.unlink(os.path.join(self._directory, name))
        os.rmdir(self._directory)


def native_tracer() -> NativeTracer | None:
    """A tracer, or None where memray is not installed or would take half a minute to name libtorch's functions."""
    if "torch" in sys.modules:
        return None
    try:
        return NativeTracer()
    except ImportError:
        return None

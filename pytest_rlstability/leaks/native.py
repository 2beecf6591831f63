"""Native stacks of what was allocated and not freed, from memray if it is installed."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator

from pytest_rlstability.leaks.lines import Line
from pytest_rlstability.model.user_code import Origin, origin

DEEPEST = 6


def native_stack(laps: int) -> Generator[int, None, tuple[list[str], Line | None]]:
    """Asks for *laps* laps. Returns the stack, innermost first, of the largest allocation that at least every tenth
    of them left behind, and the user's line that led to it.

    There is none without memray, or with torch: naming libtorch's functions would take half a minute.
    """
    if "torch" in sys.modules:
        return [], None
    try:
        import memray
    except ImportError:
        return [], None
    with tempfile.TemporaryDirectory(prefix="rlstability-memray-") as directory:
        path = os.path.join(directory, "window.bin")
        with memray.Tracker(path, native_traces=True):
            yield laps
        leaked = memray.FileReader(path).get_leaked_allocation_records(merge_threads=True)
        records = [record for record in leaked if record.n_allocations >= max(2, laps // 10)]
        for record in sorted(records, key=lambda record: -record.size):
            lines = ((file, line) for _, file, line in record.stack_trace(DEEPEST * 4))
            if users := next((line for line in lines if origin(line[0]) is Origin.USER), None):
                stack = record.hybrid_stack_trace(DEEPEST * 4)[:DEEPEST]
                return [f"{name} ({file}:{line})" for name, file, line in stack], users
    return [], None

"""What pytest itself keeps for every lap: log records, warnings and output for the report.

Training code logs and warns in every lap. pytest keeps all of it until the test is over: growth that the test does
not cause. So all but a bounded part is dropped. What ``capsys`` collects is kept, because the test may read it. Its
size is known and is subtracted from what was measured.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from pytest_rlstability.compat.cpython import recorded_warnings
from pytest_rlstability.compat.pytest import captured_bytes

KEPT = 500
LARGEST_BLOCK = 512
"""Python takes larger blocks from malloc."""
CHUNK_OVERHEAD = 16
"""Bytes that malloc adds to a block."""


class Keepings:
    """The lists in which pytest collects. ``trim()`` before every sample shortens them."""

    def __init__(self) -> None:
        self._handlers: list[Any] = [
            handler
            for handler in logging.getLogger().handlers
            if isinstance(getattr(handler, "records", None), list) and hasattr(handler, "stream")
        ]
        self._warnings = recorded_warnings() or []

    def trim(self) -> None:
        del self._warnings[KEPT:]
        for handler in self._handlers:
            if len(handler.records) > KEPT:
                del handler.records[:-KEPT]
                self._rewrite(handler.stream)

    def heap_bytes(self) -> float:
        """malloc bytes of the output that pytest keeps in memory."""
        buffers = {id(buffer): buffer for buffer in map(captured_bytes, (sys.stdout, sys.stderr)) if buffer is not None}
        return float(sum(size for size in map(sys.getsizeof, buffers.values()) if size > LARGEST_BLOCK))

    @staticmethod
    def _rewrite(stream: Any) -> None:
        text = stream.getvalue()
        stream.seek(0)
        stream.truncate()
        stream.write(text[-KEPT * 200 :])

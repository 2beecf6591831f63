"""What pytest itself keeps for every lap: log records, warnings and output for the report.

Training code logs and warns in every lap. pytest keeps all of it until the test is over, which is growth, but
not the test's. Here the oldest of it is dropped, so that what stays is bounded. What ``capsys`` collects is the
test's to read, so that nothing is dropped of it: its size is known, and is taken off what was measured.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from typing import Any

KEPT = 500
LARGEST_BLOCK = 512
"""Python asks malloc for what is larger."""
CHUNK_OVERHEAD = 16
"""Bytes that malloc takes for itself and for rounding up."""


class Keepings:
    """The lists in which pytest collects, found once; ``trim()`` before every sample cuts them to the newest.

    ``keepings = Keepings(); ...; keepings.trim()``.
    """

    def __init__(self) -> None:
        self._handlers: list[Any] = [
            handler
            for handler in logging.getLogger().handlers
            if isinstance(getattr(handler, "records", None), list) and hasattr(handler, "stream")
        ]
        recorder = getattr(warnings, "_showwarnmsg_impl", None)
        holder: Any = getattr(recorder, "__self__", None)
        self._warnings: list[Any] = holder if isinstance(holder, list) else []

    def trim(self) -> None:
        del self._warnings[KEPT:]
        for handler in self._handlers:
            if len(handler.records) > KEPT:
                del handler.records[:-KEPT]
                self._rewrite(handler.stream)

    def heap_bytes(self) -> float:
        """malloc bytes of the output that pytest keeps in memory."""
        buffers = {id(buffer): buffer for buffer in map(_captured, (sys.stdout, sys.stderr)) if buffer is not None}
        return float(sum(size for size in map(sys.getsizeof, buffers.values()) if size > LARGEST_BLOCK))

    @staticmethod
    def _rewrite(stream: Any) -> None:
        text = stream.getvalue()
        stream.seek(0)
        stream.truncate()
        stream.write(text[-KEPT * 200 :])


def _captured(stream: Any) -> io.BytesIO | None:
    """The memory behind *stream* if pytest has put it in the place of the real one."""
    capture: Any = getattr(sys.modules.get("_pytest.capture"), "CaptureIO", None)
    if capture is None or not isinstance(stream, capture):
        return None
    buffer = getattr(stream, "buffer", None)
    return buffer if isinstance(buffer, io.BytesIO) else None

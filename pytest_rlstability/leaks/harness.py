"""What pytest itself keeps for every lap: log records, warnings and output for the report.

Training code logs and warns in every lap. pytest keeps all of it until the test is over, which is growth, but
not the test's. Here the oldest of it is dropped, so that what stays is bounded.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

KEPT = 500


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

    @staticmethod
    def _rewrite(stream: Any) -> None:
        text = stream.getvalue()
        stream.seek(0)
        stream.truncate()
        stream.write(text[-KEPT * 200 :])

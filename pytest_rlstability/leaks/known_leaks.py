"""What pytest and libraries are known to keep: growth that a test does not cause, and its author cannot change."""

from __future__ import annotations

import gc
import logging
import sys
from typing import Any

from pytest_rlstability.compat.cpython import recorded_warnings
from pytest_rlstability.compat.pytest import captured_bytes

KEPT = 20
LARGEST_BLOCK = 512
"""Python takes larger blocks from malloc."""
CHUNK_OVERHEAD = 16
"""Bytes that malloc adds to a block."""


class Keepings:
    """Log records, warnings and output that pytest keeps for its report. ``trim()`` drops those that came since.

    A few stay, for the report. What ``capsys`` collects stays too, because the test may read it. ``heap_bytes`` is its
    size.
    """

    def __init__(self) -> None:
        handlers: list[Any] = logging.getLogger().handlers
        self._handlers: list[tuple[Any, int]] = [
            (handler, max(len(handler.records), KEPT))
            for handler in handlers
            if isinstance(getattr(handler, "records", None), list) and hasattr(handler, "stream")
        ]
        self._warnings = recorded_warnings() or []
        self._most_warnings = max(len(self._warnings), KEPT)

    def trim(self) -> None:
        del self._warnings[self._most_warnings :]
        for handler, most in self._handlers:
            if len(handler.records) > most:
                del handler.records[:-most]
                text = handler.stream.getvalue()[-most * 200 :]
                handler.stream.seek(0)
                handler.stream.truncate()
                handler.stream.write(text)

    def keeps(self, container: object) -> bool:
        """Whether *container* is one of pytest's."""
        return container is self._warnings or any(container is handler.records for handler, _ in self._handlers)

    def heap_bytes(self) -> float:
        """malloc bytes of the output that pytest keeps in memory."""
        buffers = {id(buffer): buffer for buffer in map(captured_bytes, (sys.stdout, sys.stderr)) if buffer is not None}
        return float(sum(size for size in map(sys.getsizeof, buffers.values()) if size > LARGEST_BLOCK))


class KnownLeak:
    """Something that a library is known to keep, given to leak checks by ``pytest_rlstability_known_leaks``.

    *reason* is shown in the report if the library kept anything.
    """

    reason = ""

    def blocks(self) -> float:
        """The number of Python memory blocks that it has kept so far."""
        return 0.0

    def heap_bytes(self) -> float:
        """The malloc bytes that it has kept so far."""
        return 0.0

    def keeps(self, container: object) -> bool:
        """Whether it keeps them in *container*, which is then not reported as the holder of a leak."""
        return False

    def close(self) -> None:
        """Release what counting needed."""


class MonitorEpisodes(KnownLeak):
    """stable-baselines3's Monitor keeps the return, length and time of every episode in three lists, and the rewards of
    the episode that runs, which may be longer than a check."""

    reason = "stable-baselines3's Monitor keeps three numbers for every episode"
    _SMALL_INTEGER = 256

    def __init__(self, monitors: list[Any]) -> None:
        self._monitors = monitors
        self._seen = [0] * len(monitors)
        self._blocks = 0.0

    def blocks(self) -> float:
        for position, monitor in enumerate(self._monitors):
            lengths = monitor.episode_lengths
            for length in lengths[self._seen[position] :]:
                self._blocks += 3 if length > self._SMALL_INTEGER else 2
            self._seen[position] = len(lengths)
        return self._blocks + sum(len(monitor.rewards) for monitor in self._monitors)

    def heap_bytes(self) -> float:
        arrays = (sys.getsizeof(kept) - sys.getsizeof([]) for kept in self._lists())
        return float(sum(size + CHUNK_OVERHEAD for size in arrays if size > LARGEST_BLOCK))

    def keeps(self, container: object) -> bool:
        return any(container is kept for kept in self._lists())

    def _lists(self) -> list[list[Any]]:
        names = ("episode_returns", "episode_lengths", "episode_times", "rewards")
        return [getattr(monitor, name) for monitor in self._monitors for name in names]


def shipped_known_leaks() -> list[KnownLeak]:
    """The known leaks of the libraries that are imported by now. Call ``gc.unfreeze()`` before."""
    monitor_class = getattr(sys.modules.get("stable_baselines3.common.monitor"), "Monitor", None)
    if monitor_class is None:
        return []
    monitors = [thing for thing in gc.get_objects() if issubclass(type(thing), monitor_class)]
    return [MonitorEpisodes(monitors)] if monitors else []

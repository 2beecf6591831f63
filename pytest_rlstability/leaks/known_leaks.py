"""Memory that libraries are known to keep, subtracted from what a leak check measures.

Without this, every healthy test of PPO would fail for growth that its author cannot change.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from pytest_rlstability.leaks.harness import CHUNK_OVERHEAD, LARGEST_BLOCK


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
    """stable-baselines3's Monitor keeps the return, length and time of every episode in three lists."""

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
        return self._blocks

    def heap_bytes(self) -> float:
        arrays = (sys.getsizeof(kept) - sys.getsizeof([]) for kept in self._lists())
        return float(sum(size + CHUNK_OVERHEAD for size in arrays if size > LARGEST_BLOCK))

    def keeps(self, container: object) -> bool:
        return any(container is kept for kept in self._lists())

    def _lists(self) -> list[list[Any]]:
        names = ("episode_returns", "episode_lengths", "episode_times")
        return [getattr(monitor, name) for monitor in self._monitors for name in names]


def shipped_known_leaks() -> list[KnownLeak]:
    """The known leaks of the libraries that are imported by now. Call ``gc.unfreeze()`` before."""
    monitor_class = getattr(sys.modules.get("stable_baselines3.common.monitor"), "Monitor", None)
    if monitor_class is None:
        return []
    monitors = [thing for thing in gc.get_objects() if issubclass(type(thing), monitor_class)]
    return [MonitorEpisodes(monitors)] if monitors else []


def open_known_leaks(config: pytest.Config) -> list[KnownLeak]:
    """The known leaks from all plugins of the run."""
    added: list[list[KnownLeak]] = config.hook.pytest_rlstability_known_leaks()
    return [known for leaks in added for known in leaks]

"""What libraries are known to keep for ever, told apart from what the test keeps.

Without these, every healthy test of PPO would fail for something its author cannot mend. What Box2D loses is allowed
for in worlds under the ``box2d_world`` fixture only, which counts it exactly.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from pytest_rlstability.leaks.harness import CHUNK_OVERHEAD, LARGEST_BLOCK


class Allowance:
    """One known habit of a library. *reason* is shown in the report when it mattered."""

    reason = ""

    def blocks(self) -> float:
        """Python blocks it has kept so far: exact, taken off what was measured."""
        return 0.0

    def heap_bytes(self) -> float:
        """malloc bytes it has kept so far: exact, taken off what was measured."""
        return 0.0

    def keeps(self, container: object) -> bool:
        """Whether *container* is where it keeps them: that one grows, and is not to blame."""
        return False

    def close(self) -> None:
        """Undo what counting needed."""


class MonitorEpisodes(Allowance):
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
        return [
            kept
            for monitor in self._monitors
            for kept in (monitor.episode_returns, monitor.episode_lengths, monitor.episode_times)
        ]


def open_allowances() -> list[Allowance]:
    """The allowances that matter here: those of libraries the test has imported by now. Needs ``gc.unfreeze()``."""
    found: list[Allowance] = []
    monitor_class = getattr(sys.modules.get("stable_baselines3.common.monitor"), "Monitor", None)
    if monitor_class is not None:
        monitors = [thing for thing in gc.get_objects() if issubclass(type(thing), monitor_class)]
        if monitors:
            found.append(MonitorEpisodes(monitors))
    return found

"""What libraries are known to keep for ever, told apart from what the test keeps.

Without these, every healthy test of PPO or of a Box2D environment would fail for something its author cannot mend.
"""

from __future__ import annotations

import gc
import sys
from typing import Any


class Allowance:
    """One known habit of a library. *reason* is shown in the report when it mattered."""

    reason = ""

    def blocks(self) -> float:
        """Python blocks it has kept so far: exact, taken off what was measured."""
        return 0.0

    def heap_bytes(self) -> float:
        """malloc bytes it has kept so far: exact, taken off what was measured."""
        return 0.0

    def bytes_at_most(self) -> float:
        """malloc bytes it may have lost so far: an upper bound, added to what growth is allowed."""
        return 0.0

    def close(self) -> None:
        """Undo what counting needed."""


class MonitorEpisodes(Allowance):
    """stable-baselines3's Monitor keeps the return, length and time of every episode in three lists."""

    reason = "stable-baselines3's Monitor keeps three numbers for every episode"
    _SMALL_INTEGER = 256
    _LARGEST_BLOCK = 512

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
        lists = [
            kept
            for monitor in self._monitors
            for kept in (monitor.episode_returns, monitor.episode_lengths, monitor.episode_times)
        ]
        return float(sum(size for size in map(sys.getsizeof, lists) if size > self._LARGEST_BLOCK))


class Box2DFixtures(Allowance):
    """Box2D's Python binding loses the copy of a shape that every fixture definition makes."""

    reason = "Box2D's binding itself loses up to 340 bytes with every fixture"
    _BYTES = 340

    def __init__(self, body_class: Any) -> None:
        self._body_class = body_class
        # as it lies in the class: what attribute access makes of it cannot be put back
        self._replaced = vars(body_class)["_b2Body__CreateFixture"]
        original = body_class._b2Body__CreateFixture
        self._count = 0

        def create_fixture(body: Any, definition: Any) -> Any:
            self._count += 1
            return original(body, definition)

        body_class._b2Body__CreateFixture = create_fixture

    def bytes_at_most(self) -> float:
        return float(self._count * self._BYTES)

    def close(self) -> None:
        self._body_class._b2Body__CreateFixture = self._replaced


def open_allowances() -> list[Allowance]:
    """The allowances that matter here: those of libraries the test has imported by now. Needs ``gc.unfreeze()``."""
    found: list[Allowance] = []
    monitor_class = getattr(sys.modules.get("stable_baselines3.common.monitor"), "Monitor", None)
    if monitor_class is not None:
        monitors = [thing for thing in gc.get_objects() if issubclass(type(thing), monitor_class)]
        if monitors:
            found.append(MonitorEpisodes(monitors))
    body_class = getattr(sys.modules.get("Box2D"), "b2Body", None)
    if body_class is not None and "_b2Body__CreateFixture" in vars(body_class):
        found.append(Box2DFixtures(body_class))
    return found

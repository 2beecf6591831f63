"""Objects the garbage collector tracks and that were made after it was frozen."""

from __future__ import annotations

import gc

from pytest_rlstability.leaks.signals.protocol import Signal


class TrackedObjects(Signal):
    name = "objects"
    title = "tracked objects"
    group = "memory"
    expensive = True
    smallest = 24.0
    resolution = 0.03
    ceiling = 3e5

    def read(self) -> float:
        return len(gc.get_objects())

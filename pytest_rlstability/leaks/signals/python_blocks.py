"""Memory blocks that Python's own allocator has in use. Native code has its own memory."""

from __future__ import annotations

import sys

from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo import UnavailableError


class PythonBlocks(Signal):
    name = "python"
    title = "Python memory blocks"
    group = "memory"
    smallest = 24.0
    resolution = 0.03
    ceiling = 3e5

    def __init__(self) -> None:
        if not sys.getallocatedblocks():
            raise UnavailableError("this Python does not count its blocks (PYTHONMALLOC=malloc?)")

    def read(self) -> float:
        return sys.getallocatedblocks()

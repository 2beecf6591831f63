"""Segments in ``/dev/shm``, which ``SharedMemory`` makes and something has to unlink."""

from __future__ import annotations

import os

from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo import require_directory
from pytest_rlstability.osinfo.shared_memory import DIRECTORY


class SharedMemory(Signal):
    name = "shm"
    title = "shared-memory segments"
    exact = True
    foreign = True

    def __init__(self) -> None:
        require_directory(DIRECTORY)

    def read(self) -> float:
        return len(os.listdir(DIRECTORY))

    def inventory(self) -> dict[str, str]:
        return {name: f"{DIRECTORY}/{name}" for name in os.listdir(DIRECTORY)}

"""Segments in ``/dev/shm``: what ``SharedMemory`` made and nobody unlinked."""

from __future__ import annotations

import os

from pytest_rlstability.signals.proc import require_directory
from pytest_rlstability.signals.protocol import Signal

DIRECTORY = "/dev/shm"


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

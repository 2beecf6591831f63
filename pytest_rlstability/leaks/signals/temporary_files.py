"""Files and directories at the top of the temporary directory."""

from __future__ import annotations

import os
import tempfile

from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.osinfo import require_directory

HABITS = ("SB3-",)
"""Directories that a library always leaves behind: stable-baselines3 makes one for its log in every ``learn()``."""


class TemporaryFiles(Signal):
    name = "tempfiles"
    title = "temporary files"
    exact = True
    foreign = True

    def __init__(self) -> None:
        self._directory = tempfile.gettempdir()
        require_directory(self._directory)

    def read(self) -> float:
        return len(self._names())

    def inventory(self) -> dict[str, str]:
        return {name: os.path.join(self._directory, name) for name in self._names()}

    def _names(self) -> list[str]:
        return [name for name in os.listdir(self._directory) if not name.startswith(HABITS)]

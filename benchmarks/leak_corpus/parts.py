"""What several cases are built from."""

from __future__ import annotations

import os
import tempfile
from typing import Any


def build_pyboy() -> Any:
    """An emulator that runs the package's homebrew ROM."""
    from pyboy import PyBoy

    from pytest_rlstability.kits.pyboy.rom import build_rom

    path = os.path.join(tempfile.gettempdir(), f"leak-corpus-{os.getuid()}.gb")
    with open(path, "wb") as file:
        file.write(build_rom())
    return PyBoy(path, window="null", sound_emulated=False, log_level="ERROR")

"""What ``rlstability doctor`` tries of PyBoy, in a fresh process that may crash."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlstability.kits.pyboy.rom import build_rom

if TYPE_CHECKING:
    from pytest_rlstability.steps.doctor_step import Stage


def emulator(rl_stage: Stage) -> None:
    """PyBoy with the package's own homebrew ROM: frames, screen, save state, stop."""
    with rl_stage("import pyboy"):
        from pyboy import PyBoy
    with tempfile.TemporaryDirectory() as directory:
        rom = Path(directory, "homebrew.gb")
        rom.write_bytes(build_rom())
        with rl_stage("start"):
            boy = PyBoy(str(rom), window="null", sound_emulated=False)
        with rl_stage("120 frames"):
            assert boy.tick(120, True)
        with rl_stage("screen"):
            assert boy.screen.ndarray.shape[:2] == (144, 160)
        with rl_stage("save and load state"):
            state = io.BytesIO()
            boy.save_state(state)
            state.seek(0)
            boy.load_state(state)
            boy.tick(1, False)
        with rl_stage("stop"):
            boy.stop(save=False)

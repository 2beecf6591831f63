"""A crash, a leak and a stall, each caught with its cause.

pytest --rl-stability examples/first_look
"""

from __future__ import annotations

import threading

import pytest
import trainer


def test_first_frame(rl_stage):
    with rl_stage("start the emulator"):
        pass
    with rl_stage("read the screen"):
        trainer.read_freed_screen()


@pytest.mark.rl_no_leak
def test_episodes(rl_laps):
    for lap in rl_laps:
        trainer.step(lap)


def test_filming(rl_locks):
    game = trainer.Capture()
    threading.Thread(target=game.film, name="camera", daemon=True).start()
    game.play()

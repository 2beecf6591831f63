"""A night of play: an emulator in a process of its own, filmed by another thread, and nothing that grows.

pytest examples/pyboy_capture --rl-soak=8h --rl-html=night.html
"""

from __future__ import annotations

import threading

import pytest

BUTTONS = ("a", "b", "left", "right", "up", "down")


@pytest.mark.rl_soak("10min")
def test_a_night_of_play(forked_pyboy, rl_laps, rl_probe) -> None:
    boy = forked_pyboy()
    over = threading.Event()
    filmed = 0

    def film() -> None:
        nonlocal filmed
        while not over.wait(1 / 30):
            filmed = (filmed + boy.screen.ndarray.shape[0]) % 1000

    camera = threading.Thread(target=film, name="camera")
    camera.start()
    rl_probe("threads", threading.active_count, limit=10)
    try:
        for lap in rl_laps:
            boy.button(BUTTONS[lap % len(BUTTONS)])
            boy.tick(24)
    finally:
        over.set()
        camera.join()

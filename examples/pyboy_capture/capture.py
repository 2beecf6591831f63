"""A game that is played in one thread and filmed in another, as it was and as it should be."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any


class CarelessRecorder:
    """Saves the screen while the game ticks: no lock, and the emulator stopped under the camera."""

    def __init__(self, boy: Any, directory: Path, pause: float = 0.001) -> None:
        self.boy, self.directory, self.pause = boy, directory, pause
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.film, name="capture", daemon=True)
        self.thread.start()

    def film(self) -> None:
        number = 0
        while not self.done.is_set():
            self.boy.screen.image.save(self.directory / f"{number:05}.png")
            number += 1
            self.done.wait(self.pause)

    def step(self) -> None:
        self.boy.tick()

    def close(self) -> None:
        self.boy.stop()  # the capture thread may still be filming
        self.done.set()


class CarefulRecorder(CarelessRecorder):
    """The same, with one lock around every use, a copy without alpha, and the thread joined before the end."""

    def __init__(self, boy: Any, directory: Path, pause: float = 0.001) -> None:
        self.lock = threading.Lock()
        super().__init__(boy, directory, pause)

    def film(self) -> None:
        number = 0
        while not self.done.is_set():
            with self.lock:
                frame = self.boy.screen.image.convert("RGB")
            frame.save(self.directory / f"{number:05}.jpg")
            number += 1
            self.done.wait(self.pause)

    def step(self) -> None:
        with self.lock:
            self.boy.tick()

    def close(self) -> None:
        self.done.set()
        self.thread.join()
        self.boy.stop()


def stack_of_views(boy: Any, depth: int = 4) -> list[Any]:
    """A frame stack that shows the newest frame four times: all its entries are the one screen buffer."""
    frames = []
    for _ in range(depth):
        boy.tick()
        frames.append(boy.screen.ndarray)
    return frames


def stack_of_copies(boy: Any, depth: int = 4) -> list[Any]:
    frames = []
    for _ in range(depth):
        boy.tick()
        frames.append(boy.screen.ndarray.copy())
    return frames

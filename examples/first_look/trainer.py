"""A trainer with three faults: it reads a freed screen, keeps every event, and takes two locks crosswise."""

from __future__ import annotations

import ctypes
import threading

EVENTS = []


def read_freed_screen() -> bytes:
    return ctypes.string_at(8, 23040)


def step(lap: int) -> None:
    EVENTS.append({"lap": lap, "reward": 0.0})


class Capture:
    """A game and a thread that films it."""

    def __init__(self) -> None:
        self.frame_lock, self.game_lock = threading.Lock(), threading.Lock()
        self.both = threading.Barrier(2)

    def film(self) -> None:
        with self.frame_lock:
            self.both.wait()
            with self.game_lock:
                pass

    def play(self) -> None:
        with self.game_lock:
            self.both.wait()
            with self.frame_lock:
                pass

"""An env whose action says what goes wrong in its worker."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy


def null_read() -> None:
    ctypes.string_at(0)


def spin() -> None:
    while True:
        pass


def sleep_long() -> None:
    time.sleep(600)


def complain() -> None:
    raise ValueError("bad action")


class UnpicklableError(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class OneWayError(Exception):
    """Pickles, and cannot be made again from what was pickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def raise_unpicklable() -> None:
    raise UnpicklableError


def raise_one_way() -> None:
    raise OneWayError(1, 2)


def start_offspring_and_sleep() -> None:
    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(600)  # of {os.getppid()}"])
    time.sleep(600)


ACTIONS: list[Callable[[], Any]] = [
    lambda: None,
    null_read,
    spin,
    sleep_long,
    lambda: os.kill(os.getpid(), signal.SIGSTOP),
    lambda: os._exit(3),
    complain,
    lambda: os.kill(os.getpid(), signal.SIGKILL),
    lambda: time.sleep(0.7),
    start_offspring_and_sleep,
    raise_unpicklable,
    raise_one_way,
]
FINE, SEGFAULT, SPIN, SLEEP, STOP, EXIT, RAISE, KILLED, SLOW, OFFSPRING, UNPICKLABLE, ONE_WAY = range(len(ACTIONS))


class TroubledEnv(gymnasium.Env):  # type: ignore[misc]
    """Observations are an image of 300 KB, more than a pipe holds. *at_close* and *at_reset* are actions as well."""

    observation_space = gymnasium.spaces.Box(0, 255, (320, 320, 3), numpy.uint8)
    action_space = gymnasium.spaces.Discrete(len(ACTIONS))

    def __init__(self, at_reset: int = FINE, at_close: int = FINE) -> None:
        self.at_reset = at_reset
        self.at_close = at_close

    def reset(self, **how: Any) -> Any:
        ACTIONS[self.at_reset]()
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        ACTIONS[int(action)]()
        return self.observe(), 1.0, False, False, {}

    def observe(self) -> Any:
        return numpy.full(self.observation_space.shape, 7, numpy.uint8)

    def close(self) -> None:
        if multiprocessing.parent_process() is not None:  # Gymnasium also makes and closes one in the test's process
            ACTIONS[self.at_close]()

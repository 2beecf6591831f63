"""How a test and its emulator's process communicate: messages over a socket pair, and a block of shared memory with
the frame number and the screen."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

HEIGHT, WIDTH, CHANNELS = 144, 160, 4
STACKS, OUTPUT = "stacks.txt", "output.txt"
"""Files in the emulator's directory: faulthandler's dumps, and what the process prints."""
SCREEN_BYTES = HEIGHT * WIDTH * CHANNELS

Step = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, which is called with an object of the emulator and these arguments."""

_SCREEN_OFFSET = mmap.PAGESIZE
_WORTH_SLEEPING = 1e-3
_SLEPT_SHARE = 0.6


class Channel(Connection):
    """One end of the socket pair. Waiting spins for up to *spin* seconds before it sleeps: waking a sleeping process
    takes about as long as half a frame of emulation. A long wait of an *expected* length sleeps through most of it
    first, because a spinning core slows other cores down."""

    def __init__(self, end: socket.socket, *, spin: float) -> None:
        if sys.platform == "win32":
            raise NotImplementedError
        super().__init__(end.detach())
        self.spin = spin
        self._poller = select.poll()
        self._poller.register(self.fileno(), select.POLLIN)

    def send(self, obj: object) -> None:
        self.send_bytes(pickle.dumps(obj))  # quicker than the pickler of multiprocessing, which knows more types

    def ready(self, seconds: float | None, *, expected: float = 0.0) -> bool:
        """Whether a message (or the end of the stream) arrives within *seconds*; ``None`` waits without a limit."""
        if sys.platform == "win32":
            raise NotImplementedError
        poll = self._poller.poll
        if self.spin and expected > _WORTH_SLEEPING:
            poll(expected * _SLEPT_SHARE * 1000)
        deadline = time.perf_counter() + self.spin
        while True:
            if poll(0):
                return True
            os.sched_yield()
            if time.perf_counter() >= deadline:
                return bool(poll(None if seconds is None else seconds * 1000))


def _anonymous_file() -> int:
    """A file without a name, so that nothing is left behind when its processes die."""
    if sys.platform == "linux" and hasattr(os, "memfd_create"):
        return os.memfd_create("rlstability-pyboy")
    descriptor, path = tempfile.mkstemp()
    os.unlink(path)
    return descriptor


class SharedBlock:
    """Memory that both processes see: the frame number, and the pixels of the last rendered frame."""

    def __init__(self, descriptor: int | None = None) -> None:
        size = _SCREEN_OFFSET + SCREEN_BYTES
        self.descriptor = _anonymous_file() if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, size)
        self._memory: mmap.mmap | None = mmap.mmap(self.descriptor, size)
        self._words: memoryview | list[int] = memoryview(self._memory).cast("B")[:8].cast("Q")

    @property
    def frame(self) -> int:
        return self._words[0]

    @frame.setter
    def frame(self, number: int) -> None:
        self._words[0] = number

    def pixels(self) -> Any:
        """The screen as a numpy array of shape ``(144, 160, 4)``, backed by this memory."""
        import numpy

        flat = numpy.frombuffer(self._memory, dtype=numpy.uint8, count=SCREEN_BYTES, offset=_SCREEN_OFFSET)
        return flat.reshape(HEIGHT, WIDTH, CHANNELS)

    def close_descriptor(self) -> None:
        """Close the descriptor, which the mapping does not need."""
        with contextlib.suppress(OSError):
            os.close(self.descriptor)

    def release(self) -> None:
        """Release the memory but keep the frame number. The mapping is freed with its last view."""
        self._words = [self.frame]
        self._memory = None

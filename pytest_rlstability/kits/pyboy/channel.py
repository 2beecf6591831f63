"""How a test and its emulator's process communicate: length-prefixed messages over a socket pair, and a block of
shared memory with the frame number and the screen."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import socket
import struct
import tempfile
import time
from typing import Any

HEIGHT, WIDTH, CHANNELS = 144, 160, 4
STACKS, OUTPUT = "stacks.txt", "output.txt"
"""Files in the emulator's directory: faulthandler's dumps, and what the process prints."""
SCREEN_BYTES = HEIGHT * WIDTH * CHANNELS

_LENGTH = struct.Struct("=Q")
_SCREEN_OFFSET = mmap.PAGESIZE
_CHUNK = 1 << 16
_WORTH_SLEEPING = 1e-3
_SLEPT_SHARE = 0.6


class Channel:
    """One end of the socket pair. Waiting spins for up to *spin* seconds before it sleeps: waking a sleeping process
    takes about as long as half a frame of emulation. A long wait of an *expected* length sleeps through most of it
    first, because a spinning core slows other cores down.
    """

    def __init__(self, end: socket.socket, *, spin: float) -> None:
        self.spin = spin
        self._socket = end
        self._received = bytearray()
        self._poller = select.poll()
        self._poller.register(end, select.POLLIN)

    def send(self, message: object) -> None:
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def ready(self, seconds: float | None, *, expected: float = 0.0) -> bool:
        """Whether a message (or the end of the stream) arrives within *seconds*; ``None`` waits without a limit."""
        if self._received:
            return True
        if self.spin and expected > _WORTH_SLEEPING:
            select.select([self._socket], [], [], expected * _SLEPT_SHARE)
        poll = self._poller.poll
        deadline = time.perf_counter() + self.spin
        while True:
            if poll(0):
                return True
            os.sched_yield()
            if time.perf_counter() >= deadline:
                return bool(poll(None if seconds is None else seconds * 1000))

    def receive(self) -> Any:
        """The next message; ``EOFError`` when the other end is gone."""
        received = self._received
        while len(received) < _LENGTH.size:
            self._read_some()
        size = _LENGTH.size + _LENGTH.unpack_from(received)[0]
        while len(received) < size:
            self._read_some()
        message = pickle.loads(received[_LENGTH.size : size])
        del received[:size]
        return message

    def _read_some(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except ConnectionError:
            data = b""
        if not data:
            raise EOFError("the other end of the channel is gone")
        self._received += data

    def close(self) -> None:
        self._socket.close()


def _anonymous_file() -> int:
    """A file without a name, so that nothing is left behind when its processes die."""
    if hasattr(os, "memfd_create"):
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

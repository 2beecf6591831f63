"""The emulator's process: a new interpreter, not a fork, so that the test's threads do not matter. It serves one
emulator over the inherited socket, and ends when the test's process ends, even during an endless ``tick``."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

from pytest_rlstability.kits.pyboy.channel import STACKS, Channel, SharedBlock, Step

SPIN = 200e-6
PUBLISH_EVERY = 0.1
"""Seconds between two looks at the frame number during one long call."""

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, slice, range})


class StopServingError(Exception):
    """The test asked the emulator to stop."""


def is_plain(value: object) -> bool:
    """Whether *value* can be sent as a whole. Anything else stays here, and the test reaches it step by step."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return _PLAIN.issuperset(map(type, value)) or all(map(is_plain, value))  # memory gives long lists of int
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    return isinstance(value, tuple(_PLAIN)) or type(value).__module__.split(".")[0] in ("numpy", "PIL")


def follow(target: Any, steps: Sequence[Step]) -> Any:
    """Walk *steps* from the emulator: ``[(getattr, ("get_tile",), {}), (operator.call, (2,), {})]``."""
    for function, arguments, keywords in steps:
        target = function(target, *arguments, **keywords)
    return target


class Server:
    """Answers one request after the other. During a hook it serves the requests that the test's callback makes."""

    def __init__(self, channel: Channel, block: SharedBlock) -> None:
        self._channel = channel
        self._block = block
        self._pixels = block.pixels()
        self._emulator: Any = None

    def run(self) -> None:
        """Build the emulator that the first message describes, then serve until the test stops it."""
        sys.unraisablehook = self._unraisable
        rom, options = self._channel.recv()
        try:
            from pyboy import PyBoy

            self._emulator = PyBoy(rom, **options)
        except Exception as error:
            self._send_error(error)
            return
        self._show()
        names = [name for name in dir(self._emulator) if not name.startswith("_")]
        methods = [name for name in names if callable(getattr(type(self._emulator), name, None))]
        self._channel.send(("value", (names, methods)))
        with contextlib.suppress(StopServingError):
            self._serve(until=None)

    def frame(self) -> int:
        return int(self._emulator.frame_count) if self._emulator is not None else 0

    def _serve(self, until: str | None) -> None:
        while True:
            self._channel.ready(None)
            request = self._channel.recv()
            if request[0] == until:
                return
            try:
                value = self._perform(request)
            except Exception as error:
                self._send_error(error)
                continue
            self._channel.send(("value", value))
            if request[0] == "stop":
                raise StopServingError

    def _send_error(self, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        try:
            self._channel.send(("error", error, text))
        except Exception:  # the exception itself does not pickle
            self._channel.send(("error", RuntimeError(f"{type(error).__name__}: {error}"), text))

    def _show(self) -> None:
        self._block.frame = self.frame()
        self._pixels[...] = self._emulator.screen.ndarray

    def _perform(self, request: tuple[Any, ...]) -> Any:
        emulator = self._emulator
        match request:
            case "tick", *arguments:
                running = emulator.tick(*arguments)
                self._show()
                return running
            case ("save",):
                state = io.BytesIO()
                emulator.save_state(state)
                return state.getvalue()
            case "load", content:
                result = emulator.load_state(io.BytesIO(content))
                self._show()
                return result
            case "stop", save, wanted:
                files = {name: io.BytesIO() for name in wanted}
                emulator.stop(save, **files)
                return {name: file.getvalue() for name, file in files.items()}
            case "hook", bank, address, number:
                emulator.hook_register(bank, address, self._call_back, number)
            case "do", steps:
                return self._do(steps)
            case _:
                raise ValueError(f"unknown request {request!r}")
        return None

    def _call_back(self, number: int) -> None:
        self._show()
        self._channel.send(("hook", number))
        self._serve(until="hook done")

    def _do(self, steps: Sequence[Step]) -> tuple[str, Any]:
        result = follow(self._emulator, steps)
        self._show()
        if is_plain(result):
            return "plain", result
        if isinstance(result, (list, tuple)):
            return "objects", [repr(item) for item in result]
        return "object", repr(result)

    def _unraisable(self, unraisable: Any) -> None:
        self._channel.send(("notice", "".join(traceback.format_exception(unraisable.exc_value))))


def _end_with(parent: int, server: Server, block: SharedBlock, directory: str) -> None:
    """Publish the frame number during long calls, and end this process when *parent* ends, even while a native
    loop never returns to Python."""
    while os.getppid() == parent:
        block.frame = server.frame()
        time.sleep(PUBLISH_EVERY)
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Serve one emulator. Arguments: descriptors of channel and shared block, the parent's pid, a directory."""
    if sys.platform == "win32":
        raise NotImplementedError
    channel_descriptor, block_descriptor, parent = (int(argument) for argument in arguments[:3])
    directory = arguments[3]
    stacks = open(os.path.join(directory, STACKS), "w")  # noqa: SIM115 (open while this process runs)
    faulthandler.enable(stacks, all_threads=True)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the test handles it
    block = SharedBlock(block_descriptor)
    block.close_descriptor()
    channel = Channel(socket.socket(fileno=channel_descriptor), spin=SPIN if (os.cpu_count() or 1) > 1 else 0.0)
    server = Server(channel, block)
    threading.Thread(target=_end_with, args=(parent, server, block, directory), daemon=True).start()
    try:
        server.run()
    except (EOFError, OSError):
        shutil.rmtree(directory, ignore_errors=True)

"""The emulator's process: ``python -m pytest_rlstability.pyboy.server CHANNEL BLOCK PARENT DIRECTORY``.

Started by a fresh interpreter, never by fork, so that it is safe whatever threads the test has. It serves one
emulator over the inherited socket, and goes when the test's process goes, even out of an endless ``tick``.
"""

from __future__ import annotations

import faulthandler
import io
import os
import select
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from pytest_rlstability.pyboy.wire import STACKS, Channel, SharedBlock

SPIN = 200e-6
PUBLISH_EVERY = 0.1
"""Seconds between two looks at the frame number during one long call."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, slice, range)


class StopServingError(Exception):
    """The test asked the emulator to stop."""


def is_plain(value: object) -> bool:
    """Whether *value* can be handed over whole; anything else stays here and is reached step by step."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    return isinstance(value, _PLAIN) or type(value).__module__.split(".")[0] in ("numpy", "PIL")


def follow(target: Any, steps: list[Any]) -> Any:
    """Walk *steps* from the emulator: ``[("attribute", "get_tile"), ("call", (2,), {}), ("attribute", "shape")]``."""
    for kind, *details in steps:
        if kind == "attribute":
            target = getattr(target, details[0])
        elif kind == "call":
            target = target(*details[0], **details[1])
        elif kind == "item":
            target = target[details[0]]
        elif kind == "set":
            setattr(target, details[0], details[1])
        elif kind == "set item":
            target[details[0]] = details[1]
        elif kind == "length":
            target = len(target)
        elif kind == "text":
            target = repr(target)
        else:
            raise ValueError(f"unknown step {kind!r}")
    return target


class Server:
    """Answers one request after the other; a hook of the emulator calls back and serves requests meanwhile."""

    def __init__(self, channel: Channel, block: SharedBlock) -> None:
        self._channel = channel
        self._block = block
        self._pixels = block.pixels()
        self._emulator: Any = None
        self._operations: dict[str, Callable[..., Any]] = {
            "tick": self._tick,
            "peek": self._peek,
            "poke": self._poke,
            "save": self._save,
            "load": self._load,
            "stop": self._stop,
            "hook": self._hook,
            "do": self._do,
        }

    def run(self) -> None:
        """Build the emulator that the first message describes, then serve until told to stop."""
        sys.unraisablehook = self._unraisable
        rom, options = self._channel.receive()
        try:
            self._emulator = self._build(rom, options)
        except Exception as error:
            self._send_error(error)
            return
        self._show()
        self._channel.send(("value", self._describe()))
        try:
            self._serve(until=None)
        except StopServingError:
            pass

    def frame(self) -> int:
        return int(self._emulator.frame_count) if self._emulator is not None else 0

    def _build(self, rom: str, options: dict[str, Any]) -> Any:
        from pyboy import PyBoy

        for name in ("ram_file", "rtc_file"):
            if options.get(name) is not None:
                options[name] = io.BytesIO(options[name])
        return PyBoy(rom, **options)

    def _describe(self) -> dict[str, Any]:
        public = [name for name in dir(self._emulator) if not name.startswith("_")]
        kind = type(self._emulator)
        return {"names": public, "methods": [name for name in public if callable(getattr(kind, name, None))]}

    def _serve(self, until: str | None) -> Any:
        while True:
            self._channel.ready(None)
            operation, *details = self._channel.receive()
            if operation == until:
                return None
            try:
                reply = self._operations[operation](*details)
            except Exception as error:
                self._send_error(error)
                continue
            self._channel.send(reply)
            if operation == "stop":
                raise StopServingError

    def _send_error(self, error: Exception) -> None:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            self._channel.send(("error", error, text))
        except Exception:  # the exception itself does not pickle
            self._channel.send(("error", RuntimeError(f"{type(error).__name__}: {error}"), text))

    def _show(self) -> None:
        self._block.frame = self.frame()
        self._pixels[...] = self._emulator.screen.ndarray

    def _tick(self, count: Any, render: bool, sound: bool) -> tuple[Any, ...]:
        running = self._emulator.tick(count, render, sound)
        if render:
            self._pixels[...] = self._emulator.screen.ndarray
        self._block.frame = self._emulator.frame_count
        return ("value", running)

    def _peek(self, key: Any) -> tuple[Any, ...]:
        value = self._emulator.memory[key]
        return ("bytes", bytes(value)) if isinstance(value, list) else ("value", value)

    def _poke(self, key: Any, value: Any) -> tuple[Any, ...]:
        self._emulator.memory[key] = value
        return ("value", None)

    def _save(self) -> tuple[Any, ...]:
        state = io.BytesIO()
        self._emulator.save_state(state)
        return ("value", state.getvalue())

    def _load(self, state: bytes) -> tuple[Any, ...]:
        result = self._emulator.load_state(io.BytesIO(state))
        self._show()
        return ("value", result)

    def _stop(self, save: bool, wanted: tuple[str, ...]) -> tuple[Any, ...]:
        files = {name: io.BytesIO() for name in wanted}
        self._emulator.stop(save, **files)
        return ("value", {name: file.getvalue() for name, file in files.items()})

    def _hook(self, bank: Any, address: Any, number: int) -> tuple[Any, ...]:
        self._emulator.hook_register(bank, address, self._call_back, number)
        return ("value", None)

    def _call_back(self, number: int) -> None:
        self._show()
        self._channel.send(("hook", number))
        self._serve(until="hook done")

    def _do(self, steps: list[Any]) -> tuple[Any, ...]:
        result = follow(self._emulator, steps)
        self._show()
        if is_plain(result):
            return ("plain", result)
        if isinstance(result, (list, tuple)):
            return ("objects", [repr(item) for item in result])
        return ("object", repr(result))

    def _unraisable(self, unraisable: Any) -> None:
        trace = traceback.format_exception(unraisable.exc_type, unraisable.exc_value, unraisable.exc_traceback)
        self._channel.send(("notice", "".join(trace)))


def _leave_with(parent: int, server: Server, block: SharedBlock, directory: str) -> None:
    """Publish the frame number of a long call, and end this process when *parent* does: a native loop that
    never returns to Python would otherwise outlive everybody."""
    waiter = _exit_waiter(parent)
    while not waiter(PUBLISH_EVERY):
        block.frame = server.frame()
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


def _exit_waiter(parent: int) -> Callable[[float], bool]:
    try:
        descriptor = os.pidfd_open(parent)
    except (AttributeError, OSError):
        pause = threading.Event()
        return lambda seconds: pause.wait(seconds) or os.getppid() != parent
    return lambda seconds: bool(select.select([descriptor], [], [], seconds)[0])


def main(arguments: list[str]) -> None:
    """Serve one emulator for the process that started this one."""
    channel_descriptor, block_descriptor, parent = (int(argument) for argument in arguments[:3])
    directory = arguments[3]
    stacks = open(os.path.join(directory, STACKS), "w")  # noqa: SIM115 (open for as long as this process lives)
    faulthandler.enable(stacks, all_threads=True)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the test's to handle, and reaches the whole group
    block = SharedBlock(block_descriptor)
    block.close_descriptor()
    end = socket.socket(fileno=channel_descriptor)
    channel = Channel(end, spin=SPIN if (os.cpu_count() or 1) > 1 else 0.0)
    server = Server(channel, block)
    watcher = threading.Thread(target=_leave_with, args=(parent, server, block, directory), daemon=True)
    watcher.start()
    try:
        server.run()
    except EOFError:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])

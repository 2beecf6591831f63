"""``ForkedPyBoy``: PyBoy's API in the test, PyBoy itself in another process."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from pytest_rlstability.pyboy.errors import EmulatorCrashed, EmulatorDiedError, EmulatorStalled, LastSeen
from pytest_rlstability.pyboy.launch import EmulatorProcess, plain_options
from pytest_rlstability.pyboy.recording import Beginning, Recorder
from pytest_rlstability.pyboy.remote import RemoteMemory, RemoteScreen, walk
from pytest_rlstability.units import format_duration, parse_duration

STALL_AFTER = "30s"
_START_LIMIT = 120.0
_LOOK_EVERY = 0.5
_DEATH_LIMIT = 10.0
_REMEMBERED_INPUTS = 12
_STATE_FILES = ("ram_file", "rtc_file")


class EmulatorStoppedError(RuntimeError):
    """A ``forked_pyboy`` was used after its ``stop()``."""


class RemoteTracebackError(Exception):
    """The traceback of an exception that was raised in the emulator's process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class ForkedPyBoy:
    """A PyBoy in a process of its own. Calls from several threads take turns; a sequence of calls that must
    not be interleaved takes ``boy.lock``.

    ``boy = ForkedPyBoy("game.gb"); boy.tick(60); boy.screen.ndarray.copy(); boy.stop()``. Without a ROM it runs
    the package's own (``cgb=True``: for the Game Boy Color). Every keyword of PyBoy is passed on.
    """

    def __init__(
        self,
        gamerom: str | os.PathLike[str] | bytes | IO[bytes] | None = None,
        *,
        stall_after: str | float = STALL_AFTER,
        record: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        self.lock = threading.RLock()
        self.death: EmulatorDiedError | None = None
        self.notices: list[str] = []
        """What went wrong in hooks, where PyBoy swallows exceptions."""
        self.uncopied = ""
        """Where observations were kept that all show the newest frame; empty when there are none."""
        self.stopped = False
        self._owner = os.getpid()
        self._stall_after = parse_duration(stall_after)
        self._inputs: deque[str] = deque(maxlen=_REMEMBERED_INPUTS)
        self._doing: tuple[str, tuple[Any, ...]] = ("start", ())
        self._last_shape: tuple[Any, ...] = ()
        self._last_duration = 0.0
        self._hooks: dict[int, tuple[Callable[[Any], object], Any]] = {}
        self._inside_hook = False
        self._recorder: Recorder | None = None
        self._beginning = Beginning()
        self._options = plain_options(options)
        self._process = EmulatorProcess(gamerom, cgb=bool(options.get("cgb")))
        self.pid = self._process.pid
        self.memory = RemoteMemory(self)
        self.screen = RemoteScreen(self, self._process.block.pixels())
        try:
            about = self._begin()
        except BaseException:
            self._release()
            raise
        self._names: frozenset[str] = frozenset(about["names"])
        self._methods: frozenset[str] = frozenset(about["methods"])
        if record is not None:
            self.record(record)

    def _begin(self) -> Any:
        self._process.channel.send((str(self._process.rom), self._options))
        return self._answer(max(self._stall_after, _START_LIMIT))

    # One operation over the channel

    def ask(self, operation: str, *details: Any) -> Any:
        """Have the emulator's process do one *operation*; for the stand-ins, not for tests."""
        if os.getpid() != self._owner:
            raise RuntimeError(f"this emulator belongs to process {self._owner}; start one of your own")
        if operation == "alive":
            return self._check_alive()
        with self.lock:
            self._check_usable()
            self._doing = (operation, details)
            if self._recorder is not None and not self._inside_hook:
                self._recorder.write(operation, details)
            shape = (operation, *details) if operation == "tick" else ()
            expected = self._last_duration if shape == self._last_shape else 0.0
            start = time.perf_counter()
            try:
                self._process.channel.send((operation, *details))
            except OSError:
                raise self._crashed() from None
            answer = self._answer(self._stall_after, expected)
            self._beginning.add(operation, details)
            self._last_shape, self._last_duration = shape, time.perf_counter() - start
            return answer

    def _check_usable(self) -> None:
        if self.death is not None:
            raise self.death
        if self.stopped:
            raise EmulatorStoppedError("Emulator is stopped")

    def _check_alive(self) -> None:
        if self.death is not None:
            raise self.death
        if not self.stopped and self._process.returncode() is not None:
            with self.lock:
                raise self._crashed()

    def _answer(self, limit: float, expected: float = 0.0) -> Any:
        while True:
            self._wait(limit, expected)
            try:
                kind, *details = self._process.channel.receive()
            except EOFError:
                raise self._crashed() from None
            if kind == "value":
                return details[0]
            if kind == "bytes":
                return list(details[0])
            if kind in ("object", "objects", "plain"):
                return kind, details[0]
            if kind == "hook":
                self._run_hook(details[0])
            elif kind == "notice":
                self.notices.append(details[0])
            else:
                error, text = details
                raise error from RemoteTracebackError(text)

    def _wait(self, limit: float, expected: float) -> None:
        """Until there is an answer, or no frame has passed for *limit* seconds: a long ``tick`` is no stall."""
        block, channel = self._process.block, self._process.channel
        frame, since = block.frame, time.monotonic()
        while not channel.ready(min(_LOOK_EVERY, limit), expected=min(expected, _LOOK_EVERY)):
            if block.frame != frame:
                frame, since = block.frame, time.monotonic()
            elif time.monotonic() - since >= limit:
                raise self._stalled(limit)

    def _run_hook(self, number: int) -> None:
        callback, context = self._hooks[number]
        self._inside_hook, doing = True, self._doing
        try:
            callback(context)
        except EmulatorDiedError:
            raise
        except Exception:
            self.notices.append(traceback.format_exc())
        finally:
            self._inside_hook, self._doing = False, doing
        self._process.channel.send(("hook done",))

    # Death

    def _crashed(self) -> EmulatorDiedError:
        if self.death is None:
            returncode = self._process.wait(_DEATH_LIMIT)
            self.death = EmulatorCrashed(self._last_seen(), returncode)
            self._release()
        return self.death

    def _stalled(self, limit: float) -> EmulatorDiedError:
        self._process.dump_stacks()
        self.death = EmulatorStalled(self._last_seen(), format_duration(limit))
        self._release()
        return self.death

    def _release(self) -> None:
        """End the process and keep nothing of it but the last screen."""
        self.screen.keep_last()
        self._process.end()
        if self._recorder is not None:
            self._recorder.close()

    def _last_seen(self) -> LastSeen:
        process = self._process
        doing = _spoken(*self._doing)
        return LastSeen(self.pid, self.frame, doing, tuple(self._inputs), process.stacks(), process.output())

    def close(self) -> EmulatorDiedError | None:
        """Kill what still runs and say how the emulator died, if it did so by itself; for the fixture."""
        if os.getpid() != self._owner:
            return None
        if self.death is None and not self.stopped and self._process.returncode() is not None:
            self._crashed()
        self._release()
        return self.death

    @property
    def finished(self) -> bool:
        """Whether nothing more can happen to it: it was stopped, or it died."""
        return self.stopped or self.death is not None

    # PyBoy's API

    @property
    def frame(self) -> int:
        """Frames emulated so far; read from shared memory, so it is known after a crash too."""
        return self._process.block.frame

    frame_count = frame

    def tick(self, count: int = 1, render: bool = True, sound: bool = True) -> bool:
        self.uncopied = self.uncopied or self.screen.uncopied()
        return bool(self.ask("tick", count, render, sound))

    def button(self, input: str, delay: int = 1) -> None:
        self._input("button", input, delay)

    def button_press(self, input: str) -> None:
        self._input("button_press", input)

    def button_release(self, input: str) -> None:
        self._input("button_release", input)

    def send_input(self, event: int, delay: int = 0) -> None:
        self._input("send_input", int(event), delay)

    def _input(self, method: str, *arguments: Any) -> None:
        self._inputs.append(f"frame {self.frame}: {_spoken(method, arguments)}")
        self._call(method, *arguments)

    def save_state(self, file_like_object: IO[bytes]) -> int:
        file_like_object.write(self.ask("save"))
        return 0

    def load_state(self, file_like_object: IO[bytes]) -> int:
        state = file_like_object.read()
        self._inputs.append(f"frame {self.frame}: load_state({len(state)} bytes)")
        return int(self.ask("load", state) or 0)

    def hook_register(self, bank: Any, addr: Any, callback: Callable[[Any], object], context: Any) -> None:
        """As PyBoy's, with *callback* run here, in the thread that ticks; its exceptions fail the test."""
        with self.lock:
            number = len(self._hooks)
            self.ask("hook", bank, addr, number)
            self._hooks[number] = (callback, context)

    def stop(self, save: bool = True, ram_file: IO[bytes] | None = None, rtc_file: IO[bytes] | None = None) -> None:
        """Stop the emulator and wait for its process to end; a second ``stop()`` does nothing, as with PyBoy."""
        with self.lock:
            if self.stopped or self.death is not None:
                return
            files = dict(zip(_STATE_FILES, (ram_file, rtc_file), strict=True))
            wanted = tuple(name for name, file in files.items() if file is not None)
            contents = self.ask("stop", save, wanted)
            for name in wanted:
                files[name].write(contents[name])  # type: ignore[union-attr]
            self._doing = ("exit after stop", ())
            if self._process.wait(self._stall_after) is None:
                raise self._stalled(self._stall_after)
            if self._process.returncode() != 0:
                raise self._crashed()
            self.stopped = True
            self._release()

    def record(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write this session to a file from here on, call by call, so that it is complete even after a crash;
        ``pytest_rlstability.pyboy.replay(path)`` runs it again. Before the first tick it holds the whole session,
        later it starts from a save state. Hooks are not part of it.
        """
        with self.lock:
            if self._recorder is not None:
                return self._recorder.path
            calls = self._beginning.calls
            state = self.ask("save") if calls is None else None
            self._recorder = Recorder(path, self._process.rom, self._options, self.frame, state, calls or ())
            return self._recorder.path

    def _call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        return walk(self, (("attribute", method), ("call", arguments, keywords)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._names:
            raise AttributeError(f"PyBoy has no public attribute {name!r}")
        if name not in self._methods:
            return walk(self, (("attribute", name),))

        def forwarded(*arguments: Any, **keywords: Any) -> Any:
            return self._call(name, *arguments, **keywords)

        return forwarded

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._names})

    def __enter__(self) -> ForkedPyBoy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _spoken(operation: str, details: tuple[Any, ...]) -> str:
    """An operation as a person would have typed it."""
    if operation == "do":
        return "".join(_spoken_step(*step) for step in details[0]).lstrip(".")
    if operation == "load":
        return "load_state(...)"
    if operation == "save":
        return "save_state(...)"
    return f"{operation}({', '.join(map(repr, details))})"


def _spoken_step(kind: str, *details: Any) -> str:
    if kind == "attribute":
        return f".{details[0]}"
    if kind == "call":
        words = [*map(repr, details[0]), *(f"{name}={value!r}" for name, value in details[1].items())]
        return f"({', '.join(words)})"
    return f"[{details[0]!r}]" if kind in ("item", "set item") else f".{kind}"

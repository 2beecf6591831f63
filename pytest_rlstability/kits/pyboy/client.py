"""``ForkedPyBoy``: PyBoy's API in the test, PyBoy itself in another process, and stand-ins for what lives there."""

from __future__ import annotations

import operator
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Any, NoReturn

from pytest_rlstability.kits.pyboy.channel import Step
from pytest_rlstability.kits.pyboy.errors import EmulatorCrashed, EmulatorDiedError, EmulatorStalled, LastSeen
from pytest_rlstability.kits.pyboy.launch import EmulatorProcess, plain_options
from pytest_rlstability.kits.pyboy.views import StandIn, ViewedScreen
from pytest_rlstability.model.units import format_duration, parse_duration

STALL_AFTER = "30s"
_START_LIMIT = 120.0
_LOOK_EVERY = 0.5
_DEATH_LIMIT = 10.0
_REMEMBERED_INPUTS = 12
_LAST_LOOK = 0.5
_INPUTS = ("button", "button_press", "button_release", "send_input")


UNPICKLABLE = (
    "a forked emulator cannot be pickled or copied: it is a connection to a process that belongs to this one. "
    "Start one in the process that needs it (ForkedPyBoy in a function that makes the env), or copy its state: "
    "save_state() here, load_state() there"
)


class ForkedPyBoy:
    """A PyBoy in a process of its own, as ``forked_pyboy`` makes it; *options* are PyBoy's. Calls from several threads
    take turns; hold ``boy.lock`` around calls that must follow each other directly."""

    def __init__(
        self,
        gamerom: str | os.PathLike[str] | bytes | IO[bytes] | None = None,
        *,
        stall_after: str | float = STALL_AFTER,
        **options: Any,
    ) -> None:
        self.lock = threading.RLock()
        self.death: EmulatorDiedError | None = None
        self.notices: dict[str, str] = {}
        """The first traceback of each kind of exception in hooks, which PyBoy swallows; by the frames it shows."""
        self.uncopied = ""
        """A report of kept observations that all show the newest frame; empty when there are none."""
        self.stopped = False
        self._owner = os.getpid()
        self._stall_after = parse_duration(stall_after)
        self._inputs: deque[str] = deque(maxlen=_REMEMBERED_INPUTS)
        self._doing: tuple[str, tuple[Any, ...]] = ("start", ())
        self._hooks_running = 0
        self._waited_at, self._waited = 0, 0.0  # a frame, and for how many seconds the test has waited for the next
        self._last_shape: tuple[Any, ...] = ()
        self._last_duration = 0.0
        self._hooks: dict[int, tuple[Callable[[Any], object], Any]] = {}
        plain = plain_options(options)
        self._process = EmulatorProcess(gamerom, cgb=bool(options.get("cgb")))
        self.pid = self._process.pid
        self.memory = RemoteObject(self, ((getattr, ("memory",), {}),), "the memory of a forked PyBoy")
        self.screen = RemoteScreen(self, self._process.block.pixels())
        try:
            self._process.channel.send((str(self._process.rom), plain))
            names, methods = self._answer(max(self._stall_after, _START_LIMIT))
        except BaseException:
            self._release()
            raise
        self._names, self._methods = frozenset[str](names), frozenset[str](methods)

    # One operation over the channel

    def ask(self, operation: str, *details: Any) -> Any:
        """Have the emulator's process do one *operation*; for the stand-ins, not for tests."""
        self._check_owner()
        with self.lock:
            if self.death is not None:
                raise self.death
            if self.stopped:
                raise RuntimeError("Emulator is stopped")
            self._doing = (operation, details)
            if not self._hooks_running:
                self._waited = 0.0
            shape = (operation, *details) if operation == "tick" else ()
            expected = self._last_duration if shape == self._last_shape else 0.0
            start = time.perf_counter()
            try:
                self._process.channel.send((operation, *details))
            except OSError:
                raise self._crashed() from None
            answer = self._answer(self._stall_after, expected)
            self._last_shape, self._last_duration = shape, time.perf_counter() - start
            return answer

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError(f"this emulator belongs to process {self._owner}; start one of your own")

    def check_alive(self) -> None:
        """Raise if the emulator has died; for the stand-ins, not for tests."""
        self._check_owner()
        if self.death is not None:
            raise self.death
        if not self.stopped and self._process.poll() is not None:
            with self.lock:
                raise self._crashed()

    def _answer(self, limit: float, expected: float = 0.0) -> Any:
        while True:
            self._wait(limit, expected)
            try:
                message = self._process.channel.recv()
            except (EOFError, OSError):
                raise self._crashed() from None
            match message:
                case "value", value:
                    return value
                case "hook", number:
                    if self._waited >= limit:  # its hooks alone keep the emulator from its next frame
                        raise self._stalled(limit)
                    self._run_hook(number)
                case "notice", text:
                    self._notice(text)
                case "error", error, text:
                    error.add_note(f"In the emulator's process:\n{text}")
                    raise error
                case _:
                    raise RuntimeError(f"unknown message {message!r}")

    def _wait(self, limit: float, expected: float) -> None:
        """Wait for an answer as long as frames pass, and at most *limit* seconds without one. Calls of hooks in between
        do not start the time again, and what they do here does not count."""
        block, channel = self._process.block, self._process.channel
        is_ready = False
        while not is_ready:
            start = time.monotonic()
            is_ready = channel.ready(min(_LOOK_EVERY, limit), expected=min(expected, _LOOK_EVERY))
            self._waited = self._waited + time.monotonic() - start if block.frame == self._waited_at else 0.0
            self._waited_at = block.frame
            if not is_ready and self._waited >= limit:
                raise self._stalled(limit)

    def _run_hook(self, number: int) -> None:
        callback, context = self._hooks[number]
        doing = self._doing
        self._hooks_running += 1
        try:
            callback(context)
        except EmulatorDiedError:
            raise
        except Exception:
            self._notice(traceback.format_exc())
        finally:
            self._hooks_running -= 1
            self._doing = doing
        self._process.channel.send(("hook done",))

    def _notice(self, text: str) -> None:
        frames = "\n".join(line for line in text.splitlines() if line.startswith(" "))
        self.notices.setdefault(frames, text)

    # Death

    def _crashed(self) -> EmulatorDiedError:
        if self.death is None:
            self._process.ended_within(_DEATH_LIMIT)
            self.death = EmulatorCrashed(self._last_seen(), self._process.returncode)
            self._release()
        return self.death

    def _stalled(self, limit: float) -> EmulatorDiedError:
        self._process.dump_stacks()
        self.death = EmulatorStalled(self._last_seen(), format_duration(limit))
        self._release()
        return self.death

    def _release(self) -> None:
        """End the process and keep only the last screen."""
        self.screen.keep_last()
        self._process.end()

    def _last_seen(self) -> LastSeen:
        doing, process = _as_code(*self._doing), self._process
        return LastSeen(self.pid, self.frame, doing, tuple(self._inputs), process.stacks(), process.output())

    def close(self) -> EmulatorDiedError | None:
        """Kill what still runs; return how the emulator died, if it died by itself. For the fixture."""
        if os.getpid() != self._owner:
            return None
        if not self.finished and not self._still_answers():
            self._crashed()
        self._release()
        return self.death

    def _still_answers(self) -> bool:
        """Whether the process is alive. One that was killed a moment ago does not answer any more; one that is busy
        cannot, and counts as alive."""
        if not self.lock.acquire(blocking=False):
            return True
        try:
            self._process.channel.send(("do", ()))
            if self._process.channel.ready(_LAST_LOOK):
                self._process.channel.recv()
        except (EOFError, OSError):
            return False
        finally:
            self.lock.release()
        return self._process.poll() is None

    @property
    def finished(self) -> bool:
        """Whether it was stopped or has died."""
        return self.stopped or self.death is not None

    # PyBoy's API

    @property
    def frame(self) -> int:
        """Frames emulated so far. It is in shared memory, so it is known after a crash too."""
        return self._process.block.frame

    frame_count = frame

    def tick(self, count: int = 1, render: bool = True, sound: bool = True) -> bool:
        self.uncopied = self.uncopied or self.screen.uncopied()
        return bool(self.ask("tick", count, render, sound))

    def save_state(self, file_like_object: IO[bytes]) -> int:
        file_like_object.write(self.ask("save"))
        return 0

    def load_state(self, file_like_object: IO[bytes]) -> int:
        state = file_like_object.read()
        self._inputs.append(f"frame {self.frame}: load_state({len(state)} bytes)")
        return int(self.ask("load", state) or 0)

    def hook_register(self, bank: Any, addr: Any, callback: Callable[[Any], object], context: Any) -> None:
        """As PyBoy's, but *callback* runs here, in the thread that ticks, and its exceptions fail the test."""
        with self.lock:
            number = len(self._hooks)
            self.ask("hook", bank, addr, number)
            self._hooks[number] = (callback, context)

    def stop(self, save: bool = True, ram_file: IO[bytes] | None = None, rtc_file: IO[bytes] | None = None) -> None:
        """Stop the emulator and wait for its process to end; a second ``stop()`` does nothing, as with PyBoy."""
        with self.lock:
            if self.finished:
                return
            files = {"ram_file": ram_file, "rtc_file": rtc_file}
            wanted = {name: file for name, file in files.items() if file is not None}
            for name, content in self.ask("stop", save, tuple(wanted)).items():
                wanted[name].write(content)
            self._doing = ("exit after stop", ())
            if not self._process.ended_within(self._stall_after):
                raise self._stalled(self._stall_after)
            if self._process.returncode != 0:
                raise self._crashed()
            self.stopped = True
            self._release()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._names:
            raise AttributeError(f"PyBoy has no public attribute {name!r}")
        if name not in self._methods:
            return walk(self, ((getattr, (name,), {}),))

        def forwarded(*arguments: Any, **keywords: Any) -> Any:
            steps: tuple[Step, ...] = ((getattr, (name,), {}), (operator.call, arguments, keywords))
            if name in _INPUTS:
                self._inputs.append(f"frame {self.frame}: {_as_code('do', (steps,))}")
            return walk(self, steps)

        return forwarded

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._names})

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(UNPICKLABLE)

    def __enter__(self) -> ForkedPyBoy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _as_code(operation: str, details: tuple[Any, ...]) -> str:
    """An operation as the test wrote it."""
    if operation == "do":
        return "".join(_step_as_code(*step) for step in details[0]).lstrip(".")
    if operation in ("load", "save"):
        return f"{operation}_state(...)"
    return f"{operation}({', '.join(map(repr, details))})"


def _step_as_code(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    if function is operator.call:
        shown = [*map(repr, arguments), *(f"{name}={value!r}" for name, value in keywords.items())]
        return f"({', '.join(shown)})"
    if function in (operator.getitem, operator.setitem):
        return f"[{arguments[0]!r}]"
    return f".{arguments[0] if arguments else function.__name__}"


class RemoteObject(StandIn):
    """An object of the emulator, known by the steps that lead to it: ``boy.get_sprite(3).tiles[0]``. Each use walks the
    steps again, so nothing is kept alive in the other process."""

    def __init__(self, boy: ForkedPyBoy, steps: tuple[Step, ...], text: str) -> None:
        self.__dict__.update(_boy=boy, _steps=steps, _text=text)

    def _ask(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        return walk(self._boy, (*self._steps, (function, arguments, keywords)))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(UNPICKLABLE)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return str(self._text)


def walk(boy: ForkedPyBoy, steps: tuple[Step, ...]) -> Any:
    """What *steps* lead to: the value itself, or a stand-in if the value cannot be sent."""
    kind, value = boy.ask("do", steps)
    if kind == "object":
        return RemoteObject(boy, steps, value)
    if kind == "objects":
        return [RemoteObject(boy, (*steps, (operator.getitem, (index,), {})), text) for index, text in enumerate(value)]
    return value


class RemoteScreen(ViewedScreen, RemoteObject):
    """``boy.screen``: pixels straight from shared memory, everything else by request."""

    def __init__(self, boy: ForkedPyBoy, pixels: Any) -> None:
        super().__init__(boy, ((getattr, ("screen",), {}),), "the screen of a forked PyBoy")
        self.__dict__.update(_given=[], _pixels=pixels)

    def _look(self, attribute: str) -> tuple[Any, int]:
        self._boy.check_alive()
        return self._pixels, self._boy.frame

    def keep_last(self) -> None:
        """From now on show a copy of the last frame: the shared memory is about to be released."""
        self.__dict__["_pixels"] = self._pixels.copy()

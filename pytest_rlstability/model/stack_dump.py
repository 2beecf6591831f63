"""Python stacks as faulthandler writes them, made readable: named threads, pytest's own frames left out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_rlstability.compat.cpython import THREAD_START
from pytest_rlstability.model.user_code import Origin, origin, package_path

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*?)\])? \(most recent call first\):")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_FATAL = re.compile(r"^Fatal Python error: (.*)$", re.MULTILINE)
_EXTENSIONS = re.compile(r"^Extension modules: (.*?)(?: \(total: \d+\))?$", re.MULTILINE)

_RUNNERS = ("child/", "parent/", "session/", "steps/", "doctor/", "plugin.py")
"""The parts of this package that call a test. The other parts are called by the user's code."""
_PASSED_THROUGH = ("child/locks/", "compat/")
"""The parts between the user's code and a lock, or between our code and the interpreter."""

_SIGNAL_OF = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
FATAL_WORDS = {name: words for words, name in _SIGNAL_OF.items()}
"""A signal's name -> what faulthandler calls it."""


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    @property
    def is_machinery(self) -> bool:
        """Whether the frame belongs to what runs a test: pytest, or that part of this package."""
        if self.file == "<frozen runpy>" or origin(self.file) is Origin.PYTEST:
            return True
        return package_path(self.file).startswith(_RUNNERS)

    @property
    def is_users(self) -> bool:
        return origin(self.file) is Origin.USER


@dataclass(frozen=True)
class ThreadStack:
    """One thread's frames, newest first."""

    name: str
    current: bool
    frames: tuple[Frame, ...]

    @property
    def own_frames(self) -> tuple[Frame, ...]:
        """The frames up to where pytest called the user's code; all of them when there is nothing else."""
        own: list[Frame] = []
        for frame in self.frames:
            if package_path(frame.file).startswith(_PASSED_THROUGH):
                continue
            if frame.is_machinery and own:
                break
            starts_thread = frame.function in THREAD_START and frame.file.endswith("threading.py")
            if not frame.is_machinery and not starts_thread:
                own.append(frame)
        return tuple(own) or self.frames[:3]

    def render(self) -> str:
        title = f"thread {self.name}" + (" (crashed here)" if self.current else "")
        lines = [f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in self.own_frames]
        return "\n".join([title, *(lines or ["  <no Python frame>"])])


@dataclass(frozen=True)
class StackDump:
    """One dump of a process."""

    threads: tuple[ThreadStack, ...] = ()
    fatal: str = ""
    extensions: tuple[str, ...] = ()

    @property
    def signal(self) -> str:
        """The signal that caused the dump; empty for a dump on request, or when the signal is not known."""
        return _SIGNAL_OF.get(self.fatal.strip(), "")

    @property
    def crashed(self) -> ThreadStack | None:
        """The thread that the signal hit."""
        return next((thread for thread in self.threads if thread.current), None)

    @property
    def crashed_frames(self) -> tuple[Frame, ...]:
        return self.crashed.own_frames if self.crashed else ()

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages with native modules that were loaded: a crash without a native stack may come from them."""
        return tuple(sorted({name.partition(".")[0] for name in self.extensions}))

    def render(self) -> str:
        return "\n".join(thread.render() for thread in self.threads)


def parse_dump(text: str, names: Mapping[int, str] | None = None) -> StackDump:
    """Read faulthandler's text; *names* maps thread idents to names."""
    fatal = _FATAL.search(text)
    extensions = _EXTENSIONS.search(text)
    return StackDump(
        threads=_parse_threads(text, names or {}, fatal is not None),
        fatal=fatal[1] if fatal else "",
        extensions=tuple(name.strip() for name in extensions[1].split(",")) if extensions else (),
    )


def _parse_threads(text: str, names: Mapping[int, str], crashed: bool) -> tuple[ThreadStack, ...]:
    """The threads in *text*, the crashed one first."""
    found: list[tuple[str, bool, list[Frame]]] = []
    inside = False
    for line in text.splitlines():
        if head := _THREAD.match(line):
            inside = True
            ident = int(head[1], 16)
            name = names.get(ident) or head[2] or f"0x{ident:x}"
            found.append((name, crashed and line.startswith("Current"), []))
        elif inside and (frame := _FRAME.match(line)):
            number = int(frame[2]) if frame[2].isdigit() else 0
            found[-1][-1].append(Frame(frame[1], number, frame[3]))
        elif not line.startswith("  "):
            inside = False
    threads = (ThreadStack(name, current, tuple(frames)) for name, current, frames in found)
    return tuple(sorted(threads, key=lambda thread: not thread.current))

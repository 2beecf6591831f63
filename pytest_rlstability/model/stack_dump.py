"""Python stacks as faulthandler writes them, made readable: named threads, only the frames that matter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from pathlib import PurePath

from pytest_rlstability.compat.cpython import THREAD_START
from pytest_rlstability.model.messages import Json
from pytest_rlstability.model.statements import statement_at
from pytest_rlstability.model.units import counted
from pytest_rlstability.model.user_code import Origin, library_name, origin, package_path

_THREAD = re.compile(
    r"^(?:Current thread 0x([0-9a-f]+)|Thread 0x([0-9a-f]+)|Stack)(?: \[(.*?)\])? \(most recent call first\):"
)
"""*Stack* is the current thread, all that a Python without a GIL writes. Does not say which thread that is."""
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_FATAL = re.compile(r"^(?:Fatal Python error|(Windows fatal exception)): (.*)$", re.MULTILINE)
_EXTENSIONS = re.compile(r"^Extension modules: (.*?)(?: \(total: \d+\))?$", re.MULTILINE)

_IMPORT = "<frozen importlib"
_RUNNERS = ("child/", "parent/", "session/", "steps/", "doctor/", "plugin.py")
"""The parts of this package that call a test. The other parts are called by the user's code."""
_PASSED_THROUGH = ("child/locks/", "child/alarms.py", "child/dead_workers.py", "compat/")
"""The parts between the user's code and a lock, a sleep or a worker, or between our code and the interpreter."""

_SIGNAL_OF = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
_LOOPS = {"asyncio", "trio", "uvloop"}
"""Packages of event loops."""
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
    ident: int = 0

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
        return render_frames(title, self.own_frames)


@dataclass(frozen=True)
class WaitingTask:
    """A coroutine that waits: the awaits that lead to where it does, newest first."""

    title: str
    frames: tuple[Frame, ...]

    @classmethod
    def of(cls, sent: Json) -> WaitingTask:
        """What a task of ``messages.StallDescribed`` says."""
        frames = tuple(Frame(*frame) for frame in sent["frames"])
        return cls(f"task {sent['name']}" if sent["name"] else f"coroutine {frames[-1].function}", frames)

    def render(self) -> str:
        return render_frames(self.title, self.frames)


def render_frames(title: str, frames: Sequence[Frame]) -> str:
    """A stack as in a traceback: the newest frame last, each with its source. Of libraries only the newest frame of all
    is shown, and of this package none."""
    shown = [frame for frame in reversed(frames) if not (package_path(frame.file) or frame.file.startswith(_IMPORT))]
    lines = []
    for library, several in groupby(shown, lambda frame: "" if frame is shown[-1] else library_name(frame.file)):
        for frame in () if library else several:
            lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
            if source := statement_at(frame.file, frame.line):
                lines.append(f"    {source}")
        if library:
            lines.append(f"  ... {counted(len([*several]), 'frame')} in {library}")
    return "\n".join([title, *(lines or ["  <no Python frame>"])])


def is_event_loop(frames: Sequence[Frame]) -> bool:
    """Whether a thread with these *frames*, newest first, is in an event loop that has nothing to run."""
    inner = [PurePath(frame.file).parts[-3:] for frame in takewhile(lambda frame: not frame.is_users, frames)]
    in_loop = any(_LOOPS.intersection(parts) for parts in inner)
    return in_loop and bool({*_LOOPS, "selectors.py"}.intersection(inner[0]))


@dataclass(frozen=True)
class StackDump:
    """One dump of a process."""

    threads: tuple[ThreadStack, ...] = ()
    fatal: str = ""
    exception: bool = False
    """Whether *fatal* is the name of an exception of Windows, and not of a signal."""
    extensions: tuple[str, ...] = ()

    @property
    def signal(self) -> str:
        """The signal, or exception of Windows, that caused the dump; empty for a dump on request, or if not known."""
        if self.exception:
            return self.fatal.strip()
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
        fatal=fatal[2] if fatal else "",
        exception=bool(fatal and fatal[1]),
        extensions=tuple(name.strip() for name in extensions[1].split(",")) if extensions else (),
    )


def _only(names: Mapping[int, str]) -> str:
    return next(iter(names.values())) if len(names) == 1 else ""


def _parse_threads(text: str, names: Mapping[int, str], crashed: bool) -> tuple[ThreadStack, ...]:
    """The threads in *text*, the crashed one first."""
    found: list[tuple[str, bool, list[Frame], int]] = []
    inside = False
    for line in text.splitlines():
        if head := _THREAD.match(line):
            inside = True
            current, other, system_name = head.groups()
            ident = int(current or other or "0", 16)
            name = names.get(ident) or system_name or (f"0x{ident:x}" if ident else _only(names) or "?")
            found.append((name, crashed and not other, [], ident))
        elif inside and (frame := _FRAME.match(line)):
            number = int(frame[2]) if frame[2].isdigit() else 0
            found[-1][2].append(Frame(frame[1], number, frame[3]))
        elif not line.startswith("  "):
            inside = False
    threads = (ThreadStack(name, current, tuple(frames), ident) for name, current, frames, ident in found)
    return tuple(sorted(threads, key=lambda thread: not thread.current))

"""Python stacks as faulthandler writes them, made readable: named threads, pytest's own frames left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*?)\])? \(most recent call first\):")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_FATAL = re.compile(r"^Fatal Python error: (.*)$", re.MULTILINE)
_EXTENSIONS = re.compile(r"^Extension modules: (.*?)(?: \(total: \d+\))?$", re.MULTILINE)

_MACHINERY = re.compile(
    r"[/\\](?:_pytest|pluggy|pytest_rlstability[/\\](?:isolation|steps|doctor)|xdist|execnet)[/\\]"
    r"|[/\\]pytest_rlstability[/\\]plugin\.py$|[/\\]pytest_timeout\.py$|[/\\]pytest[/\\]__main__\.py$"
    r"|[/\\]bin[/\\]pytest$|^<frozen runpy>$"
)

_WRAPPER = re.compile(r"[/\\]pytest_rlstability[/\\]locks[/\\]")

_INSTALLED = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]|^<")

_SIGNAL_OF = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
FATAL_WORDS = {name: words for words, name in _SIGNAL_OF.items()}
"""What faulthandler calls a signal, by its name."""


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    @property
    def is_machinery(self) -> bool:
        """Whether the frame is pytest's or ours, not the user's."""
        return bool(_MACHINERY.search(self.file))

    @property
    def is_users(self) -> bool:
        """Whether the frame is the user's own, not the standard library's or an installed package's."""
        return not self.is_machinery and not _INSTALLED.search(self.file)


@dataclass(frozen=True)
class ThreadStack:
    """One thread's frames, newest first."""

    ident: int
    name: str
    current: bool
    frames: tuple[Frame, ...]

    @property
    def own_frames(self) -> tuple[Frame, ...]:
        """The frames up to where pytest called the user's code; all of them when there is nothing else."""
        own: list[Frame] = []
        for frame in self.frames:
            if _WRAPPER.search(frame.file):
                continue  # between the user's code and the lock it took
            if frame.is_machinery and own:
                break
            if not frame.is_machinery and not _is_thread_start(frame):
                own.append(frame)
        return tuple(own) or self.frames[:3]

    def render(self) -> str:
        title = f"thread {self.name}" + (" (crashed here)" if self.current else "")
        lines = [f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in self.own_frames]
        return "\n".join([title, *(lines or ["  <no Python frame>"])])


@dataclass(frozen=True)
class StackDump:
    """What one dump of a process says."""

    threads: tuple[ThreadStack, ...] = ()
    fatal: str = ""
    extensions: tuple[str, ...] = ()

    @property
    def signal(self) -> str:
        """The signal that caused the dump, ``""`` when it was asked for or is not known."""
        return _SIGNAL_OF.get(self.fatal.strip(), "")

    @property
    def crashed(self) -> ThreadStack | None:
        """The thread the signal hit."""
        return next((thread for thread in self.threads if thread.current), None)

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages whose native modules were loaded: where a crash without a native stack may come from."""
        return tuple(sorted({name.partition(".")[0] for name in self.extensions}))

    def render(self) -> str:
        return "\n".join(thread.render() for thread in self.threads)


def parse_dump(text: str, names: Mapping[int, str] | None = None) -> StackDump:
    """Read faulthandler's text; *names* maps thread idents to names.

    >>> dump = parse_dump('Fatal Python error: Aborted\\n\\nCurrent thread 0x1f (most recent call first):\\n'
    ...                   '  File "/game/env.py", line 40 in step\\n', {31: "MainThread"})
    >>> dump.signal, dump.crashed.name, dump.crashed.frames[0].function
    ('SIGABRT', 'MainThread', 'step')
    """
    fatal = _FATAL.search(text)
    extensions = _EXTENSIONS.search(text)
    return StackDump(
        threads=_parse_threads(text, names or {}, fatal is not None),
        fatal=fatal[1] if fatal else "",
        extensions=tuple(name.strip() for name in extensions[1].split(",")) if extensions else (),
    )


def _parse_threads(text: str, names: Mapping[int, str], crashed: bool) -> tuple[ThreadStack, ...]:
    threads: list[ThreadStack] = []
    frames: list[Frame] | None = None
    for line in text.splitlines():
        if head := _THREAD.match(line):
            frames = []
            ident = int(head[1], 16)
            name = names.get(ident) or head[2] or f"0x{ident:x}"
            current = crashed and line.startswith("Current")
            threads.append(ThreadStack(ident, name, current, ()))
        elif frames is not None and (frame := _FRAME.match(line)):
            number = int(frame[2]) if frame[2].isdigit() else 0
            frames.append(Frame(frame[1], number, frame[3]))
            threads[-1] = _with_frames(threads[-1], frames)
        elif not line.startswith("  "):
            frames = None
    return tuple(sorted(threads, key=lambda thread: not thread.current))


def _is_thread_start(frame: Frame) -> bool:
    return frame.function in ("_bootstrap", "_bootstrap_inner") and frame.file.endswith("threading.py")


def _with_frames(thread: ThreadStack, frames: Sequence[Frame]) -> ThreadStack:
    return ThreadStack(thread.ident, thread.name, thread.current, tuple(frames))

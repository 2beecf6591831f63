"""The native stack of a process that is held at its crash or stuck: by pystack, else gdb, else a word why not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_LIMIT = 20.0
_KEPT_FRAMES = 14
_KEPT_THREADS = 12

# Between the crash and the debugger: the signal's way through libc to where we hold the thread.
_HANDLER = ("__restore_rt", "<signal handler called>")
_INTERPRETER = re.compile(
    r"_?Py(?:Eval|Object|Function|Vectorcall|Run|_|Main|CFunction|Import|Number)|pymain|run_(?:mod|eval)|pyrun|cfunction_|"
    r"(?:method|object|builtin|vectorcall|slot|partial|type|do|function)_|vectorcall|thread_run|pythread|builtin|"
    r"__libc_start|_start$|clone|start_thread|main$|gen_send|coro_"
)


@dataclass
class NativeThread:
    """One thread's native frames, newest first."""

    title: str
    frames: list[str] = field(default_factory=list)

    @property
    def crashed(self) -> bool:
        return any(frame.startswith(_HANDLER) for frame in self.frames)

    def render(self) -> str:
        last_handler = max((i for i, frame in enumerate(self.frames) if frame.startswith(_HANDLER)), default=-1)
        telling = [frame for frame in self.frames[last_handler + 1 :] if not _INTERPRETER.match(frame)]
        machinery = next((i for i, frame in enumerate(telling) if _is_pytest(frame)), len(telling))
        telling = telling[: max(machinery, 1)]
        return "\n".join([self.title, *(f"  {frame}" for frame in telling[:_KEPT_FRAMES])])


def native_stack(pid: int, mode: str = "auto") -> str:
    """The native stacks of a live process, newest frame first; of a crashed one only the thread that crashed.
    Where there is none to be had, a line in parentheses says why.

    >>> native_stack(1, "off")
    '(off)'
    """
    if mode == "off":
        return "(off)"
    if sys.platform != "linux":
        return "(only on Linux)"
    reasons = []
    for name, (arguments, parse) in _TOOLS.items():
        program = find_tool(name)
        if program is None:
            reasons.append(f"{name} is not installed")
            continue
        output, complaint = _run([program, *arguments, str(pid)])
        threads = list(parse(output))
        if any(thread.frames for thread in threads):
            shown = [thread for thread in threads if thread.crashed] or threads[:_KEPT_THREADS]
            return "\n".join([*(thread.render() for thread in shown), f"(by {name})"])
        reasons.append(f"{name}: {complaint}")
    return f"(none: {'; '.join(reasons)})"


def find_tool(name: str) -> str | None:
    """The program *name*: the one installed beside this interpreter, else the one on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / name
    return str(beside) if beside.exists() else shutil.which(name)


def _run(command: list[str]) -> tuple[str, str]:
    """What a tool printed, and what it had to complain of."""
    try:
        result = subprocess.run(
            command, capture_output=True, timeout=_LIMIT, text=True, errors="replace", stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {_LIMIT:.0f} s"
    except OSError as error:
        return "", str(error)
    complaint = f"{result.stderr}\n{result.stdout}"
    if re.search(r"ptrace|not permitted", complaint, re.IGNORECASE):
        return result.stdout, "not permitted to attach (ptrace)"
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    return result.stdout, lines[-1][:160] if lines else f"exit code {result.returncode}"


def _is_pytest(frame: str) -> bool:
    return frame.endswith("[Python]") and any(part in frame for part in ("/_pytest/", "/pluggy/"))


_PYSTACK_FRAME = re.compile(r'^ +\((C|Python)\) File "(.*)", line (\d+), in (.*?)(?: \(inlined\))?(?: \(([^()]*)\))?$')


def _parse_pystack(text: str) -> Iterator[NativeThread]:
    """Its traces run from the oldest frame to the newest."""
    thread: NativeThread | None = None
    for line in text.splitlines():
        if head := re.match(r"Traceback for thread (\d+) \((.*?)\)", line):
            if thread is not None:
                yield thread
            thread = NativeThread(f"thread {head[1]} ({head[2]})")
        elif thread is not None and (frame := _PYSTACK_FRAME.match(line)):
            language, file, number, function, library = frame.groups()
            place = f"{file}:{number}" if language == "Python" or "?" not in file else Path(library or "?").name
            thread.frames.insert(0, f"{function} at {place}" + (" [Python]" if language == "Python" else ""))
    if thread is not None:
        yield thread


_GDB_FRAME = re.compile(r"^#\d+ +(?:0x[0-9a-f]+ in )?(.*)$")


def _parse_gdb(text: str) -> Iterator[NativeThread]:
    thread: NativeThread | None = None
    for line in text.splitlines():
        if head := re.match(r'Thread \d+ \(.*?\(?LWP (\d+)\)?(?: "(.*)")?', line):
            if thread is not None:
                yield thread
            thread = NativeThread(f"thread {head[1]} ({head[2] or '?'})")
        elif thread is not None and (frame := _GDB_FRAME.match(line)):
            thread.frames.append(_without_arguments(frame[1]))
    if thread is not None:
        yield thread


def _without_arguments(frame: str) -> str:
    """``step at env.cpp:40`` for gdb's ``step (this=0x0, n=3) at env.cpp:40``."""
    function, _, rest = frame.partition(" (")
    place = re.search(r"\) (?:at (.*)|from .*?([^/]*))$", rest)
    if place is None:
        return function
    return f"{function} at {place[1] or place[2]}"


_TOOLS: dict[str, tuple[list[str], Callable[[str], Iterator[NativeThread]]]] = {
    "pystack": (["remote", "--native"], _parse_pystack),
    "gdb": (["-nx", "-batch", "-ex", "set pagination off", "-ex", "thread apply all bt 60", "-p"], _parse_gdb),
}

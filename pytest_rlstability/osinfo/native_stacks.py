"""The native stack of a process that is held at its crash or stuck: by pystack, else gdb, else faulthandler, else a
reason why not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import dropwhile, groupby, takewhile
from pathlib import Path

from pytest_rlstability.model.user_code import Origin, origin
from pytest_rlstability.osinfo import LINUX

_LIMIT = 20.0
_KEPT_FRAMES = 14
_KEPT_THREADS = 12

_PYTHON = " [Python]"
"""How a frame of Python code ends."""
_UNKNOWN = "??"
# The frames of a signal handler. What is newer holds the thread; what is older crashed.
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
        return "\n".join([self.title, *(f"  {frame}" for frame in self._telling[:_KEPT_FRAMES])])

    @property
    def _telling(self) -> list[str]:
        """The frames that are not the machinery of the interpreter, a signal handler or pytest."""
        last_handler = max((i for i, frame in enumerate(self.frames) if frame.startswith(_HANDLER)), default=-1)
        telling = [frame for frame in self.frames[last_handler + 1 :] if _is_telling(frame)]
        telling = [frame for frame, _ in groupby(telling)]
        machinery = next((i for i, frame in enumerate(telling) if _is_pytest(frame)), len(telling))
        return telling[: max(machinery, 1)]


def native_stack(pid: int, mode: str = "auto", *, dump: str = "", python: bool = False) -> str:
    """The native stacks of a live process, newest frame first; of a crashed one only the thread that crashed. If there
    is none, a line in parentheses says why.

    *dump* is what faulthandler wrote in the crash. Since Python 3.14 it ends with the C stack, which is shown if no
    tool gives one. With *python* a stack of Python frames alone will do, which is all that pystack finds in a Python
    without symbols.
    """
    if mode == "off":
        return "(off)"
    threads, remark = _ask_tools(pid, python) if LINUX else ([], "only on Linux")
    if not threads and (crashed := parse_c_stack(dump)):
        threads, remark = [crashed], f"by faulthandler; {remark}"
    elif not threads:
        return f"(none: {remark})"
    shown = [thread for thread in threads if thread.crashed] or threads[:_KEPT_THREADS]
    return "\n".join([*(thread.render() for thread in shown), f"({remark})"])


def _ask_tools(pid: int, python: bool) -> tuple[list[NativeThread], str]:
    """What the first tool that answers has found, and which it was; else nothing, and why."""
    reasons = []
    for name in sorted(_TOOLS, key=lambda name: name in _found_none and not python):
        arguments, parse = _TOOLS[name]
        program = find_tool(name)
        if program is None:
            reasons.append(f"{name} is not installed")
            continue
        output, complaint = _run([program, *arguments, str(pid)])
        threads = parse(output)
        frames = [frame for thread in threads for frame in thread.frames]
        if not all(frame.endswith(_PYTHON) for frame in frames) or (python and frames):
            return threads, f"by {name}"
        if frames:
            _found_none.add(name)
        reasons.append(f"{name}: {'it found no native frames' if frames else complaint}")
    return [], "; ".join(reasons)


def find_tool(name: str) -> str | None:
    """The program *name*: the one installed beside this interpreter, else the one on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / name
    return str(beside) if beside.exists() else shutil.which(name)


def _run(command: list[str]) -> tuple[str, str]:
    """What a tool printed, and its error message."""
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


def _is_telling(frame: str) -> bool:
    """Whether a frame is neither the interpreter's nor one of which nothing is known."""
    return frame != _UNKNOWN and not _INTERPRETER.match(frame)


def _is_pytest(frame: str) -> bool:
    """Whether it is a line such as ``call at /lib/pluggy/_hooks.py:12 [Python]`` in pytest's code."""
    place = frame.removesuffix(_PYTHON).rpartition(" at ")[2]
    return frame.endswith(_PYTHON) and origin(place.rpartition(":")[0]) is Origin.PYTEST


def _parse(text: str, heading: str, read_frame: Callable[[str], str | None]) -> list[NativeThread]:
    """The threads of a tool's output. *heading* matches the line that begins one: its number and its name."""
    threads: list[NativeThread] = []
    for line in text.splitlines():
        if head := re.match(heading, line):
            threads.append(NativeThread(f"thread {head[1]} ({head[2] or '?'})"))
        elif threads and (frame := read_frame(line)):
            threads[-1].frames.append(frame)
    return threads


_PYSTACK_FRAME = re.compile(r'^ +\((C|Python)\) File "(.*)", line (\d+), in (.*?)(?: \(inlined\))?(?: \(([^()]*)\))?$')


def _parse_pystack(text: str) -> list[NativeThread]:
    threads = _parse(text, r"Traceback for thread (\d+) \((.*)\) (?:\[.*\] )?\(most", _pystack_frame)
    for thread in threads:
        thread.frames.reverse()  # pystack writes the oldest frame first
    return threads


def _pystack_frame(line: str) -> str | None:
    if not (frame := _PYSTACK_FRAME.match(line)):
        return None
    language, file, number, function, library = frame.groups()
    place = f"{file}:{number}" if language == "Python" or "?" not in file else Path(library or "?").name
    return f"{function} at {place}" + (_PYTHON if language == "Python" else "")


def _parse_gdb(text: str) -> list[NativeThread]:
    return _parse(text, r'Thread \d+ \(.*?\(?LWP (\d+)\)?(?: "(.*)")?', _gdb_frame)


def _gdb_frame(line: str) -> str | None:
    """``step at env.cpp:40`` for gdb's ``#1  0x7f in step (this=0x0, n=3) at env.cpp:40``."""
    if not (frame := re.match(r"#\d+ +(?:0x[0-9a-f]+ in )?(.*)$", line)):
        return None
    function, _, rest = frame[1].partition(" (")
    if function == "_PyEval_EvalFrameDefault":
        return f"Python code{_PYTHON}"
    place = re.search(r"\) (?:at (.*)|from .*?([^/]*))$", rest)
    return function if place is None else f"{function} at {place[1] or place[2]}"


_C_STACK = "Current thread's C stack trace (most recent call first):"
_C_FRAME = re.compile(r'^  Binary file "(.*?)"(?:, at (\S*?)\+0x[0-9a-f]+)? \[0x[0-9a-f]+\]$')


def parse_c_stack(dump: str) -> NativeThread | None:
    """The C stack of the crashed thread that faulthandler has written; None if there is none."""
    _, _, text = dump.partition(_C_STACK)
    lines = takewhile(lambda line: line.startswith("  "), text.splitlines()[1:])
    found = [(frame[1], frame[2] or _UNKNOWN) for line in lines if (frame := _C_FRAME.match(line))]
    interpreter = found[0][0] if found else ""
    # It begins with faulthandler, which is part of the interpreter, and the system's frame of a signal handler.
    crashed = [*dropwhile(lambda frame: frame[0] == interpreter, found)][1:]
    frames = [name if file == interpreter else f"{name} at {Path(file).name}" for file, name in crashed]
    return NativeThread("thread that crashed", frames) if frames else None


_found_none: set[str] = set()
"""Tools that have found Python frames only. The next process has the same interpreter: they are asked last."""
_TOOLS: dict[str, tuple[list[str], Callable[[str], list[NativeThread]]]] = {
    "pystack": (["remote", "--native"], _parse_pystack),
    "gdb": (["-nx", "-batch", "-ex", "set pagination off", "-ex", "thread apply all bt 60", "-p"], _parse_gdb),
}

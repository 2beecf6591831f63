"""Where a step ended: the one line of Python that says most, out of a dump or a traceback."""

from __future__ import annotations

import os
import re
import sysconfig

from pytest_rlstability.evidence.stacks import Frame, parse_dump
from pytest_rlstability.steps import Outcome

_TRACEBACK_FRAME = re.compile(r'^ +File "(.*)", line (\d+), in (.*)$', re.MULTILINE)


def place_of(outcome: Outcome) -> str:
    """``torch/__init__.py:3 in <module>``: the newest line outside the standard library, ``""`` when none is known."""
    frames = _frames(outcome)
    telling = [frame for frame in frames if not frame.is_machinery and not _is_standard(frame.file)]
    if not telling:
        telling = [frame for frame in frames if not frame.is_machinery and not frame.file.startswith("<frozen")]
    return f"{shorten(telling[0].file)}:{telling[0].line} in {telling[0].function}" if telling else ""


def stack_of(outcome: Outcome) -> str:
    """The Python stack as text for a person: threads of a dump, or the traceback of an exception."""
    if outcome.ending == "raised":
        return _own_part(outcome.stack)
    lines = parse_dump(outcome.stack).render().splitlines()
    return "\n".join(line for line in lines if 'File "<frozen importlib' not in line)


def shorten(file: str) -> str:
    """The path from ``site-packages`` or the current directory on, where it lies in one of them."""
    for parent in (*_package_directories(), os.getcwd()):
        if file.startswith(parent + os.sep):
            return file[len(parent) + 1 :]
    return file


def _frames(outcome: Outcome) -> list[Frame]:
    """Newest first, of the thread that crashed, else of the main thread, which a dump names last."""
    if outcome.ending == "raised":
        found = [Frame(file, int(line), function) for file, line, function in _TRACEBACK_FRAME.findall(outcome.stack)]
        return found[::-1]
    dump = parse_dump(outcome.stack)
    thread = dump.crashed or (dump.threads[-1] if dump.threads else None)
    return list(thread.frames) if thread else []


def _own_part(traceback: str) -> str:
    """A traceback without the frames through which the step itself was called."""
    lines, kept, skipping = traceback.splitlines(), [], False
    for line in lines:
        if frame := _TRACEBACK_FRAME.match(line):
            skipping = Frame(frame[1], int(frame[2]), frame[3]).is_machinery
        elif not line.startswith(" "):
            skipping = False
        if not skipping:
            kept.append(line)
    return "\n".join(kept)


def _package_directories() -> set[str]:
    return {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}


def _is_standard(file: str) -> bool:
    if file.startswith("<frozen"):
        return True
    library = sysconfig.get_path("stdlib") + os.sep
    return file.startswith(library) and not file.startswith(os.path.join(library, "site-packages"))

"""Where a step ended: the line of Python to look at first, from a dump or a traceback."""

from __future__ import annotations

import os
import re
import sysconfig

from pytest_rlstability.model.stack_dump import Frame, parse_dump
from pytest_rlstability.model.user_code import Origin, origin
from pytest_rlstability.steps import Outcome

_TRACEBACK_FRAME = re.compile(r'^ +File "(.*)", line (\d+), in (.*)$', re.MULTILINE)


def place_of(outcome: Outcome) -> str:
    """``torch/__init__.py:3 in <module>``: the newest line outside the standard library, ``""`` when none is known."""
    frames = [frame for frame in _frames(outcome) if not frame.is_machinery]
    shown = [frame for frame in frames if origin(frame.file) is not Origin.STANDARD_LIBRARY]
    shown = shown or [frame for frame in frames if not frame.file.startswith("<frozen")]
    return f"{shorten(shown[0].file)}:{shown[0].line} in {shown[0].function}" if shown else ""


def stack_of(outcome: Outcome) -> str:
    """The Python stack as text for a person: threads of a dump, or the traceback of an exception."""
    if outcome.ending == "raised":
        return _own_part(outcome.stack)
    lines = parse_dump(outcome.stack).render().splitlines()
    return "\n".join(line for line in lines if 'File "<frozen importlib' not in line)


def shorten(file: str) -> str:
    """The path from ``site-packages`` or the current directory on, where it lies in one of them."""
    for parent in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), os.getcwd()):
        if file.startswith(parent + os.sep):
            return file[len(parent) + 1 :]
    return file


def _frames(outcome: Outcome) -> list[Frame]:
    """The frames of the thread that crashed, else of the main thread (the last of a dump), newest first."""
    if outcome.ending == "raised":
        found = [Frame(file, int(line), function) for file, line, function in _TRACEBACK_FRAME.findall(outcome.stack)]
        return found[::-1]
    dump = parse_dump(outcome.stack)
    thread = dump.crashed or (dump.threads[-1] if dump.threads else None)
    return list(thread.frames) if thread else []


def _own_part(traceback: str) -> str:
    """A traceback without the frames of the code that called the step."""
    kept, skipping = [], False
    for line in traceback.splitlines():
        if frame := _TRACEBACK_FRAME.match(line):
            skipping = Frame(frame[1], int(frame[2]), frame[3]).is_machinery
        elif not line.startswith(" "):
            skipping = False
        if not skipping:
            kept.append(line)
    return "\n".join(kept)

"""Where a step ended: the line of Python to look at first, from a dump or a traceback."""

from __future__ import annotations

import os
import re
import sysconfig

from pytest_rlstability.model.stack_dump import Frame, parse_dump
from pytest_rlstability.model.user_code import Origin, origin
from pytest_rlstability.steps import Outcome

_TRACEBACK_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)\n(?:    .*\n)*', re.MULTILINE)


def place_of(outcome: Outcome) -> str:
    """``torch/__init__.py:3 in <module>``: the newest line outside the standard library, ``""`` when none is known."""
    frames = [frame for frame in _frames(outcome) if not frame.is_machinery]
    shown = [frame for frame in frames if origin(frame.file) is not Origin.STANDARD_LIBRARY]
    shown = shown or [frame for frame in frames if not frame.file.startswith("<frozen")]
    return f"{_shorten(shown[0].file)}:{shown[0].line} in {shown[0].function}" if shown else ""


def stack_of(outcome: Outcome) -> str:
    """The Python stack for a person: the threads of a dump, or a traceback without the code that called the step."""
    if outcome.ending == "raised":
        return _TRACEBACK_FRAME.sub(lambda found: "" if _frame(found).is_machinery else found[0], outcome.stack)
    lines = parse_dump(outcome.stack).render().splitlines()
    return "\n".join(line for line in lines if 'File "<frozen importlib' not in line)


def _frames(outcome: Outcome) -> list[Frame]:
    """The frames of the thread that crashed, else of the main thread (the last of a dump), newest first."""
    if outcome.ending == "raised":
        return [_frame(found) for found in _TRACEBACK_FRAME.finditer(outcome.stack)][::-1]
    dump = parse_dump(outcome.stack)
    thread = dump.crashed or (dump.threads[-1] if dump.threads else None)
    return list(thread.frames) if thread else []


def _frame(found: re.Match[str]) -> Frame:
    return Frame(found[1], int(found[2]), found[3])


def _shorten(file: str) -> str:
    """The path from ``site-packages`` or the current directory on, where it lies in one of them."""
    for parent in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), os.getcwd()):
        if file.startswith(parent + os.sep):
            return file[len(parent) + 1 :]
    return file

"""Where in the user's code something was done, cheaply enough to note it on every call."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from types import FrameType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = (_PACKAGE, os.path.dirname(os.path.abspath(threading.__file__)) + os.sep + "threading.py")
_OUTERMOST = f"{os.sep}_pytest{os.sep}"
_DEPTH = 4


@dataclass(frozen=True)
class Site:
    """The innermost lines of the user's that led to a call, innermost first."""

    lines: tuple[tuple[str, int, str], ...]

    def __str__(self) -> str:
        return "\n".join(f"{_relative(path)}:{line} in {function}" for path, line, function in self.lines)

    @property
    def innermost(self) -> str:
        return str(Site(self.lines[:1])) or "unknown place"


def _relative(path: str) -> str:
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    return path if relative.startswith("..") else relative


def users_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame from *frame* outwards that is not ours."""
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return frame


def here() -> Site:
    """The place in the user's code that is being executed by this thread."""
    lines = []
    frame = users_frame(sys._getframe(1))
    while frame is not None and len(lines) < _DEPTH and _OUTERMOST not in frame.f_code.co_filename:
        lines.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = users_frame(frame.f_back)
    return Site(tuple(lines))

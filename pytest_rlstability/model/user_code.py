"""Where in the user's code something was done, cheaply enough to note it on every call."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

_SKIPPED = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    os.path.abspath(threading.__file__),
    os.path.abspath(weakref.__file__),
)
_SKIPPED_WRAPPERS = (os.path.join("", "Box2D", "Box2D.py"),)
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
    """The innermost frame from *frame* outwards that is neither ours nor a binding's."""
    while frame is not None and _is_skipped(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_skipped(path: str) -> bool:
    return path.startswith(_SKIPPED) or path.endswith(_SKIPPED_WRAPPERS)


def users_frames(frame: FrameType | None, depth: int) -> Iterator[FrameType]:
    """At most *depth* frames of the user's, from *frame* outwards, up to where pytest called in."""
    frame = users_frame(frame)
    while frame is not None and depth and _OUTERMOST not in frame.f_code.co_filename:
        yield frame
        depth -= 1
        frame = users_frame(frame.f_back)


def here() -> Site:
    """The place in the user's code that is being executed by this thread."""
    frames = users_frames(sys._getframe(1), _DEPTH)
    return Site(tuple((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in frames))

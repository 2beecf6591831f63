"""Notes the user's Python line that ran when a memory checker reported an error: the checker sees only native frames.

Valgrind appends each error to a file. Whenever that file has grown since the last line, that line caused it. What is
written begins with the size that the file had then, so that each error has its line.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from os import O_APPEND, O_CREAT, O_WRONLY, getpid, stat, write
from os import open as open_descriptor
from threading import settrace as settrace_in_threads
from types import FrameType
from typing import Any

from pytest_rlstability.model.user_code import Origin, origin

VARIABLE = "RLSTABILITY_ERROR_LINES"
"""Holds the path of the checker's file, in which ``%p`` is the process, and in a second line the file to write."""
_MOST = 20
_DEEPEST = 12


def watch_errors(environment: Mapping[str, str]) -> None:
    """Begin, if the variable asks for it."""
    if given := environment.get(VARIABLE):
        errors, lines = given.split("\n")
        tracer = _Tracer(
            errors.replace("%p", str(getpid())), open_descriptor(lines, O_WRONLY | O_CREAT | O_APPEND, 0o600)
        )
        settrace_in_threads(tracer.trace)
        sys.settrace(tracer.trace)


def line_of(text: str, offset: int) -> tuple[str, ...]:
    """The lines at which the error that ends at *offset* of the checker's file was found, newest first, from the *text*
    that was written; empty if the program died there."""
    for entry in text.split("\n\n"):
        size, *lines = entry.splitlines() or ["0"]
        if int(size) >= offset:
            return tuple(lines)
    return ()


class _Tracer:
    def __init__(self, errors: str, descriptor: int) -> None:
        self._errors = errors
        self._descriptor = descriptor
        self._size = self._errors_size()
        self._written = 0
        self._users: dict[str, bool] = {}

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in self._users:
            self._users[file] = origin(file) is Origin.USER and not file.startswith("<frozen")
        return self._Line(self, frame) if self._users[file] and self._written < _MOST else None

    def _errors_size(self) -> int:
        try:
            return stat(self._errors).st_size
        except OSError:
            return 0

    def check(self, frame: FrameType | None, line: int) -> None:
        size = self._errors_size()
        if size == self._size:
            return
        self._size, text, depth = size, f"{size}\n", 0
        while frame is not None and depth < _DEEPEST:
            if self._users.get(frame.f_code.co_filename):
                text += f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}\n"
                depth += 1
            frame = frame.f_back
            line = frame.f_lineno if frame is not None else 0
        self._written += 1
        write(self._descriptor, f"{text}\n".encode())

    class _Line:
        """The trace function of one frame: it knows the line that ran before."""

        def __init__(self, tracer: _Tracer, frame: FrameType) -> None:
            self._tracer = tracer
            self._before = frame.f_lineno

        def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
            self._tracer.check(frame, self._before)
            self._before = frame.f_lineno
            return self

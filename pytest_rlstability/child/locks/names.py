"""The name of a lock: what it was assigned to in the source."""

from __future__ import annotations

import ast
import dis
import itertools
import linecache
import os
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FrameType

from pytest_rlstability.model.user_code import Origin, origin

_WRAPPERS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LONGEST_STATEMENT = 12


def users_frame(frame: FrameType | None) -> tuple[FrameType, FrameType | None]:
    """The innermost frame, from *frame* outwards, that is neither the standard library's nor of ``child.locks``, and
    the frame it called. Unlike ``model.user_code.users_frame`` it stops at code of the kits: they make locks too."""
    assert frame is not None
    innermost, inner = frame, None
    while frame is not None:
        path = frame.f_code.co_filename
        if origin(path) is not Origin.STANDARD_LIBRARY and not path.startswith(_WRAPPERS):
            return frame, inner
        frame, inner = frame.f_back, frame
    return innermost, None


def site_of(frame: FrameType) -> tuple[CodeType, int]:
    """Where the user's code is now, seen from *frame*."""
    frame, _ = users_frame(frame)
    return frame.f_code, frame.f_lasti


def line_at(code: CodeType, instruction: int) -> int:
    """The line of the instruction at an offset, as ``frame.f_lasti`` gives it."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno


def is_with(code: CodeType, instruction: int) -> bool:
    """Whether the instruction begins a ``with``."""
    return dis.opname[code.co_code[instruction]] == "BEFORE_WITH"


def place_text(code: CodeType, instruction: int) -> str:
    """``env.py:40``"""
    return f"{os.path.basename(code.co_filename)}:{line_at(code, instruction)}"


def assigned_name(code: CodeType, instruction: int) -> str:
    """The name that the call at an instruction is assigned to; empty when there is none.

    ``self.frame_lock = Lock()`` gives ``frame_lock``, ``a, b = Lock(), Lock()`` each its own,
    ``locks["frame"] = Lock()`` and ``{"frame": Lock()}`` ``frame``, ``locks = [Lock() for _ in range(4)]`` ``locks``.
    """
    line, column = line_at(code, instruction), _column(code, instruction)
    # Upwards, because the statement may begin on an earlier line than the call.
    for first in range(line, max(0, line - _LONGEST_STATEMENT), -1):
        for statement in _statements(code.co_filename, first, line):
            for call in _calls(statement, line - first + 1, column):
                if name := _name_for(statement, call):
                    return name
    return ""


def _calls(statement: ast.stmt, line: int, column: int | None) -> Iterator[ast.Call]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and node.lineno == line and column in (None, node.col_offset):
            yield node


def _statements(path: str, first: int, line: int) -> list[ast.stmt]:
    """The statements from line *first* to *line*, with the later lines that complete them."""
    text = linecache.getline(path, first)
    indent = len(text) - len(text.lstrip())
    block = text[indent:] + "".join(linecache.getline(path, number) for number in range(first + 1, line + 1))
    for number in range(line + 1, line + _LONGEST_STATEMENT):
        with suppress(SyntaxError, ValueError):
            module = ast.parse(block)
            if module.body:
                _shift(module, indent)
                return module.body
        block += linecache.getline(path, number)
    return []


def _shift(module: ast.Module, indent: int) -> None:
    """Correct the columns of the first line's nodes: its indent was cut off."""
    for node in ast.walk(module):
        if getattr(node, "lineno", 0) == 1:
            node.col_offset += indent  # type: ignore[attr-defined]


def _column(code: CodeType, instruction: int) -> int | None:
    """The column of an instruction; None in code that was compiled without it."""
    return next(itertools.islice(code.co_positions(), instruction // 2, None))[2]


def _name_for(statement: ast.stmt, call: ast.Call) -> str:
    for node in ast.walk(statement):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if value is call and isinstance(key, ast.Constant):
                    return str(key.value)
    if isinstance(statement, ast.AnnAssign):
        return _target_name(statement.target)
    if not isinstance(statement, ast.Assign):
        return ""
    target, value = statement.targets[-1], statement.value
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        for one_target, one_value in zip(target.elts, value.elts, strict=False):
            if any(node is call for node in ast.walk(one_value)):
                return _target_name(one_target)
    return _target_name(target)


def _target_name(target: ast.expr) -> str:
    if isinstance(target, ast.Attribute):
        return target.attr
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Subscript):
        if isinstance(target.slice, ast.Constant):
            return str(target.slice.value)
        return _target_name(target.value)
    if isinstance(target, (ast.Tuple, ast.List)):
        return " and ".join(filter(None, map(_target_name, target.elts)))
    return ""

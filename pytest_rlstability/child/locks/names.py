"""What a lock is called: the name its maker assigned it to, read from the source."""

from __future__ import annotations

import ast
import dis
import itertools
import linecache
import os
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType

_STANDARD_LIBRARY = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
_SITE_PACKAGES = tuple(os.sep + name + os.sep for name in ("site-packages", "dist-packages"))
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LONGEST_STATEMENT = 12


@lru_cache(maxsize=4096)
def is_machinery(path: str) -> bool:
    """Whether a file is the standard library's or ours: not where a person would look for a lock."""
    if path.startswith((_OURS, "<frozen")):
        return True
    return os.path.realpath(path).startswith(_STANDARD_LIBRARY) and not any(part in path for part in _SITE_PACKAGES)


def users_frame(frame: FrameType | None) -> tuple[FrameType, FrameType | None]:
    """The innermost frame, from *frame* outwards, that a person wrote, and the one it called."""
    assert frame is not None
    innermost, inner = frame, None
    while frame is not None:
        if not is_machinery(frame.f_code.co_filename):
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
    """Whether the instruction is the beginning of a ``with``."""
    return dis.opname[code.co_code[instruction]] in ("BEFORE_WITH", "SETUP_WITH")


def place_text(code: CodeType, instruction: int) -> str:
    """``env.py:40``"""
    return f"{os.path.basename(code.co_filename)}:{line_at(code, instruction)}"


def assigned_name(code: CodeType, instruction: int) -> str:
    """The name that the call at an instruction is assigned to, ``""`` when it is not.

    ``self.frame_lock = Lock()`` gives ``frame_lock``, ``a, b = Lock(), Lock()`` each its own,
    ``locks["frame"] = Lock()`` and ``{"frame": Lock()}`` ``frame``, ``locks = [Lock() for _ in range(4)]`` ``locks``.
    """
    line = line_at(code, instruction)
    column = _column(code, instruction)
    # Upwards, because the call may stand on a later line of its statement.
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
    """The statements from line *first* to *line*, and as far beyond as it takes to complete them."""
    text = linecache.getline(path, first)
    indent = len(text) - len(text.lstrip())
    block = text[indent:] + "".join(linecache.getline(path, number) for number in range(first + 1, line + 1))
    for number in range(line + 1, line + _LONGEST_STATEMENT):
        if statements := _parse(block):
            for statement in statements:
                _shift(statement, indent)
            return statements
        block += linecache.getline(path, number)
    return []


def _parse(block: str) -> list[ast.stmt]:
    try:
        return ast.parse(block).body
    except (SyntaxError, ValueError):
        return []


def _shift(statement: ast.stmt, indent: int) -> None:
    """Give the nodes of the first line, whose indent was cut off, the columns they have in the file."""
    for node in ast.walk(statement):
        if getattr(node, "lineno", 0) == 1:
            node.col_offset += indent  # type: ignore[attr-defined]


def _column(code: CodeType, instruction: int) -> int | None:
    """The column of an instruction; Python 3.10 knows none."""
    if not hasattr(code, "co_positions"):
        return None
    positions = next(itertools.islice(code.co_positions(), instruction // 2, None), None)
    return None if positions is None else positions[2]


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
    target = statement.targets[-1]
    value = statement.value
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

"""The name of a lock: what it was assigned to in the source."""

from __future__ import annotations

import ast
import dis
import itertools
import linecache
import os
from functools import lru_cache
from types import CodeType, FrameType

from pytest_rlstability.model.user_code import Origin, origin

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WRAPPERS = os.path.dirname(os.path.abspath(__file__)) + os.sep


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


def is_with(code: CodeType, instruction: int) -> bool:
    """Whether the instruction calls ``__enter__`` for a ``with``: BEFORE_WITH, or since Python 3.14 LOAD_SPECIAL, whose
    argument 0 is ``__enter__``, and CALL."""
    bytecode = code.co_code
    if dis.opname[bytecode[instruction]] == "BEFORE_WITH":
        return True
    before = instruction - 2
    return before >= 0 and dis.opname[bytecode[before]] == "LOAD_SPECIAL" and bytecode[before + 1] == 0


def place_text(code: CodeType, instruction: int) -> str:
    """``env.py:40``"""
    return f"{os.path.basename(code.co_filename)}:{_position(code, instruction)[0]}"


def _position(code: CodeType, instruction: int) -> tuple[int, int | None]:
    """Line and column of an instruction; the column is None in code that was compiled without it."""
    line, _, column, _ = next(itertools.islice(code.co_positions(), instruction // 2, None))
    return line or code.co_firstlineno, column


@lru_cache(maxsize=256)
def assigned_name(code: CodeType, instruction: int) -> str:
    """The name that the call at an instruction is assigned to; empty when there is none.

    ``self.frame_lock = Lock()`` gives ``frame_lock``, ``a, b = Lock(), Lock()`` each its own,
    ``locks["frame"] = Lock()`` and ``{"frame": Lock()}`` ``frame``, ``locks = [Lock() for _ in range(4)]`` ``locks``,
    ``def step(self, lock=Lock()):`` ``lock``.
    """
    line, column = _position(code, instruction)
    for statement in _statements(code.co_filename):
        if statement.lineno <= line <= (statement.end_lineno or 0):
            for node in ast.walk(statement):
                if isinstance(node, ast.Call) and node.lineno == line and column in (None, node.col_offset):
                    return _name_for(statement, node)
    return ""


@lru_cache(maxsize=8)
def _statements(path: str) -> list[ast.stmt]:
    """The statements of a file that contain no other statement, and then the functions, the innermost first; none if
    it is not Python."""
    try:
        module = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return []
    statements = [node for node in ast.walk(module) if isinstance(node, ast.stmt)]
    functions = [node for node in statements if isinstance(node, _FUNCTIONS)]
    return [*(node for node in statements if not hasattr(node, "body")), *reversed(functions)]


def _name_for(statement: ast.stmt, call: ast.Call) -> str:
    for node in ast.walk(statement):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if value is call and isinstance(key, ast.Constant):
                    return str(key.value)
    if isinstance(statement, _FUNCTIONS):
        return _parameter_name(statement.args, call)
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


def _parameter_name(parameters: ast.arguments, call: ast.Call) -> str:
    """The parameter whose default the call is part of."""
    positional = [*parameters.posonlyargs, *parameters.args]
    defaults = [*zip(reversed(positional), reversed(parameters.defaults), strict=False)]
    for parameter, default in (*defaults, *zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)):
        if default is not None and any(node is call for node in ast.walk(default)):
            return parameter.arg
    return ""


def _target_name(target: ast.expr) -> str:
    match target:
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Subscript(slice=ast.Constant(value=name)):
            return str(name)
        case ast.Subscript(value=container):
            return _target_name(container)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            return " and ".join(filter(None, map(_target_name, targets)))
        case _:
            return ""

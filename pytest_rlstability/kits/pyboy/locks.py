"""Which locks the calling thread holds.

Locks made while ``child.locks`` is installed are tracked. Older locks are searched for in the caller's frames (its
variables, their attributes, the globals it names): an ``RLock`` knows its owner, a plain ``Lock`` counts as held while
it is locked, unless another thread is inside ``with lock:``.
"""

from __future__ import annotations

import _thread
import ast
import itertools
import linecache
import sys
import threading
from functools import lru_cache
from types import FrameType, ModuleType
from typing import Any

from pytest_rlstability.child.locks.registry import threads
from pytest_rlstability.child.locks.tracked import PlainCondition
from pytest_rlstability.compat.cpython import lock_of, ownership
from pytest_rlstability.model.user_code import users_frames

_PLAIN_LOCK = type(_thread.allocate_lock())
_REENTRANT_LOCK = type(_thread.RLock())
_LOCKS = (_PLAIN_LOCK, _REENTRANT_LOCK)
_FRAMES_SEARCHED = 12
_ATTRIBUTES_SEARCHED = 200


def held_locks(frame: FrameType | None) -> frozenset[Any]:
    """The locks that the calling thread holds: records of tracked locks, and untracked locks visible from *frame*."""
    found = set[Any](threads.me.holding())
    for user in users_frames(frame, _FRAMES_SEARCHED):
        named_globals = (user.f_globals.get(name) for name in user.f_code.co_names)
        for value in (*user.f_locals.values(), *named_globals):
            found.update(lock for lock in _locks_of(value) if _is_held(lock))
    return frozenset(found)


def _locks_of(value: object) -> list[Any]:
    if isinstance(value, _LOCKS):
        return [value]
    if isinstance(value, PlainCondition):
        return _locks_of(lock_of(value))
    attributes = getattr(value, "__dict__", None)
    # Objects of the standard library (a Thread, an Event, a Queue) lock their inner locks for their own reasons.
    if type(value).__module__ in sys.stdlib_module_names or type(attributes) is not dict:
        return []
    if len(attributes) > _ATTRIBUTES_SEARCHED or isinstance(value, (type, ModuleType)):
        return []
    return [item for item in list(attributes.values()) if isinstance(item, _LOCKS)]


def _is_held(lock: Any) -> bool:
    if not isinstance(lock, _PLAIN_LOCK):
        return bool(ownership(lock)())
    return lock.locked() and not _is_held_elsewhere(lock)  # a plain lock does not know its owner


def _is_held_elsewhere(lock: Any) -> bool:
    """Whether the source shows that another thread holds *lock*: it is in the body of a ``with`` of that lock."""
    mine = threading.get_ident()
    frames = [frame for ident, frame in sys._current_frames().items() if ident != mine]
    return any(_is_inside_with(user, lock) for frame in frames for user in users_frames(frame, _FRAMES_SEARCHED))


def _is_inside_with(frame: FrameType, lock: Any) -> bool:
    code = frame.f_code
    line, _, column, _ = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
    if line is None or column is None:
        return False
    return any(
        # A function that is defined inside the body begins after it, and runs elsewhere.
        (code.co_firstlineno, 0) <= start <= (line, column) < end and _value(frame, names) is lock
        for names, start, end in _with_bodies(code.co_filename)
    )


_Place = tuple[int, int]


@lru_cache(maxsize=32)
def _with_bodies(path: str) -> list[tuple[list[str], _Place, _Place]]:
    """The names in each ``with a.b.c:`` of a file, and where its body begins and ends. Those whose body may let the
    lock go are left out."""
    try:
        module = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return []
    return [
        (names, (node.body[0].lineno, node.body[0].col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in ast.walk(module)
        if isinstance(node, ast.With) and not _lets_go(node)
        for item in node.items
        if (names := _dotted(item.context_expr))
    ]


def _lets_go(node: ast.With) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr in ("release", "wait") for part in ast.walk(node))


def _dotted(expression: ast.expr) -> list[str]:
    """``self.env.lock`` as its names; empty for any other expression."""
    match expression:
        case ast.Name(id=name):
            return [name]
        case ast.Attribute(value=owner, attr=name) if names := _dotted(owner):
            return [*names, name]
    return []


def _value(frame: FrameType, names: list[str]) -> object:
    """What dotted *names* stand for in a frame, as far as that can be known without running code."""
    value: object = frame.f_locals.get(names[0], frame.f_globals.get(names[0]))
    for name in names[1:]:
        attributes = getattr(value, "__dict__", {})
        value = attributes.get(name)
    return value

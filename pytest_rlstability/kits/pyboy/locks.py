"""Which locks the calling thread holds.

Locks made while ``child.locks`` is installed are tracked. Older locks are searched for in the caller's frames (its
variables, their attributes, the globals it names): an ``RLock`` knows its owner, a plain ``Lock`` counts as held while
it is locked.
"""

from __future__ import annotations

import _thread
import sys
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
    # A plain lock does not know its owner.
    return lock.locked() if isinstance(lock, _PLAIN_LOCK) else ownership(lock)()

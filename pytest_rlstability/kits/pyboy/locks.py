"""Which locks the calling thread holds.

Locks made while ``HeldLocks`` is active know their holder. Older ones are looked for in the frames of the
caller (its variables, the attributes of those, the globals it names): an ``RLock`` knows its owner, a plain
``Lock`` counts as held while it is locked.
"""

from __future__ import annotations

import _thread
import sys
import threading
from types import FrameType, ModuleType, TracebackType
from typing import Any

from pytest_rlstability.sites import users_frames

_PLAIN_LOCK = type(_thread.allocate_lock())
_REENTRANT_LOCK = type(_thread.RLock())
_LOCKS = (_PLAIN_LOCK, _REENTRANT_LOCK)
_FRAMES_SEARCHED = 12
_ATTRIBUTES_SEARCHED = 200

_held = threading.local()


def _mine() -> list[Any]:
    locks: list[Any] | None = getattr(_held, "locks", None)
    if locks is None:
        locks = _held.locks = []
    return locks


class TrackedLock:
    """A ``threading.Lock`` that knows which thread took it."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._holder: list[Any] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._holder = _mine()
            self._holder.append(self)
        return taken

    def release(self) -> None:
        holder = self._holder
        if self in holder:
            holder.remove(self)
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._lock = _thread.allocate_lock()
        self._holder = []


class TrackedRLock:
    """A ``threading.RLock`` that knows which thread took it."""

    def __init__(self) -> None:
        self._lock: Any = _thread.RLock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken: bool = self._lock.acquire(blocking, timeout)
        if taken:
            _mine().append(self)
        return taken

    def release(self) -> None:
        self._lock.release()
        _mine().remove(self)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    # What threading.Condition asks of its lock.

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())

    def _release_save(self) -> tuple[int, Any]:
        locks = _mine()
        count = locks.count(self)
        _held.locks = [lock for lock in locks if lock is not self]
        return count, self._lock._release_save()

    def _acquire_restore(self, state: tuple[int, Any]) -> None:
        count, inner = state
        self._lock._acquire_restore(inner)
        _mine().extend([self] * count)

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()


class HeldLocks:
    """While active, ``threading.Lock`` and ``threading.RLock`` make locks that know their holder."""

    def __enter__(self) -> HeldLocks:
        self._originals = (threading.Lock, threading.RLock)
        threading.Lock, threading.RLock = TrackedLock, TrackedRLock  # type: ignore[assignment]
        return self

    def __exit__(self, *exception: object) -> None:
        threading.Lock, threading.RLock = self._originals

    def of_caller(self, frame: FrameType | None) -> frozenset[Any]:
        """The locks that the calling thread holds; *frame* is where to look for locks older than this object."""
        return frozenset({*_mine(), *_visible(frame)})


def _visible(frame: FrameType | None) -> list[Any]:
    found: list[Any] = []
    for user in users_frames(frame, _FRAMES_SEARCHED):
        for value in [*user.f_locals.values(), *_named_globals(user)]:
            found += _locks_of(value)
    return [lock for lock in found if _is_held(lock)]


def _named_globals(frame: FrameType) -> list[Any]:
    return [frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals]


def _locks_of(value: object) -> list[Any]:
    if isinstance(value, _LOCKS):
        return [value]
    if isinstance(value, threading.Condition):
        return _locks_of(value._lock)  # type: ignore[attr-defined]
    attributes = getattr(value, "__dict__", None)
    # Locks inside a Thread, an Event or a Queue are its own affair, and locked for reasons of its own.
    if type(value).__module__ in sys.stdlib_module_names or type(attributes) is not dict:
        return []
    if len(attributes) > _ATTRIBUTES_SEARCHED or isinstance(value, (type, ModuleType)):
        return []
    return [item for item in list(attributes.values()) if isinstance(item, _LOCKS)]


def _is_held(lock: Any) -> bool:
    owned = getattr(lock, "_is_owned", None)  # plain locks do not know their owner
    return bool(owned() if owned is not None else lock.locked())

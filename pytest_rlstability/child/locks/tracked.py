"""The locks that replace those of ``threading``.

They are made for speed. ``with lock:`` looks ``__enter__`` and ``__exit__`` up on the type and finds slots there, which
hold functions of the one lock. ``__exit__`` and ``release`` are the bare lock's own, written in C. ``__enter__`` is a
small closure that tries the bare lock and notes who took it where. The closures refer to the lock's record and not to
the lock, so that a lock is freed with its last reference.
"""

from __future__ import annotations

import _thread
import sys
import threading
import weakref
from collections.abc import Callable
from operator import attrgetter
from time import perf_counter
from types import FrameType
from typing import Any

from pytest_rlstability.child.locks.names import assigned_name, place_text, site_of, users_frame
from pytest_rlstability.child.locks.registry import (
    LockRecord,
    Site,
    ThreadEnd,
    ThreadRecord,
    Waiting,
    registry,
    taken,
    threads,
)
from pytest_rlstability.compat.cpython import BlockingCondition, free_after_fork, is_held_again, ownership, release_all
from pytest_rlstability.model.messages import LockWaitEnded

_NOTICE = 0.2
"""Seconds of waiting after which the wait is reported, so that one without end is known before it blocks."""

_getframe = sys._getframe
Acquire = Callable[[bool, float], bool]


def make_record(kind: str, mine: Callable[[], bool], again: Callable[[], bool] = bool) -> LockRecord:
    """A record for a new lock: its kind, and the user's line that made it. A lock inside an event or a queue gets the
    name and kind of that."""
    frame, called = users_frame(_getframe(1))
    part = ""
    if called is not None and called.f_code.co_name == "__init__":
        maker = type(called.f_locals.get("self")).__name__.removeprefix("Tracked")
        if maker != kind:
            kind, part = maker, assigned_name(called.f_code, called.f_lasti)
    return LockRecord(registry.place(kind, part, (frame.f_code, frame.f_lasti)), mine, again)


def wait_for(lock: LockRecord, acquire: Acquire, timeout: float, site: Site, on: ThreadRecord | None) -> bool:
    """Call ``acquire(True, timeout)`` (no limit when negative), and note how long it took. *on* holds the lock."""
    me = threads.me
    before, began = me.waiting, perf_counter()
    holder = "" if on is None else f", held by thread {on.name}"
    me.waiting = Waiting(lock, site, began)
    try:
        limited = 0 <= timeout <= _NOTICE
        got = acquire(True, timeout if limited else _NOTICE)
        if not got and not limited:
            got = _wait_long(me, lock, acquire, timeout if timeout < 0 else timeout - _NOTICE, site, on)
        return got
    finally:
        me.waiting = before
        seconds = perf_counter() - began
        if seconds > lock.place.waits.longest:
            lock.place.worst = f"thread {me.name} at {place_text(*site)}{holder}"
        lock.place.waits.add(seconds)


def _wait_long(
    me: ThreadRecord, lock: LockRecord, acquire: Acquire, timeout: float, site: Site, on: ThreadRecord | None
) -> bool:
    registry.report_wait(me, lock, site, endless=timeout < 0, on=lock.owner or on)
    wrapper = lock.wrapper()
    if wrapper is not None:
        wrapper.announce(True)
    try:
        return acquire(True, timeout)
    finally:
        if wrapper is not None:
            wrapper.announce(False)
        registry.send(LockWaitEnded(me.ident))


def contend(lock: LockRecord, acquire: Acquire, timeout: float, frame: FrameType) -> bool:
    """Wait for a lock that another thread holds, and note this thread as its owner."""
    site = site_of(frame)
    if not wait_for(lock, acquire, timeout, site, lock.owner):
        return False
    me = threads.me
    taken(me, lock, frame, timeout < 0)
    lock.owner, (lock.code, lock.at) = me, site
    return True


class _Wrapper:
    """What all wrapped locks share: the slots, and reports of who takes the lock while a thread waits long for it."""

    __slots__ = (
        "__enter__", "__exit__", "__weakref__", "_inner", "_long_waits", "_quick", "_record", "acquire", "release",
    )  # fmt: skip

    _record: LockRecord
    _inner: Any

    def _begin(self, inner: Any, record: LockRecord) -> None:
        self._inner = inner
        self._record = record
        self._long_waits = 0
        self.__enter__, self.acquire = entering(record, inner.acquire), acquiring(record, inner.acquire)
        record.wrapper = weakref.ref(self)

    def announce(self, waiting: bool) -> None:
        """A long wait begins or ends. Until the last one ends, each new owner is reported."""
        self._long_waits += 1 if waiting else -1
        if waiting and self._long_waits == 1:
            self._quick = self.__enter__, self.acquire
            self.__enter__ = self.acquire = _reporting(self.acquire, self._record)
        elif not waiting and self._long_waits == 0:
            self.__enter__, self.acquire = self._quick

    def _at_fork_reinit(self) -> None:
        free_after_fork(self._inner)
        self._record.owner = None

    def __getattr__(self, name: str) -> Any:
        """What the standard library uses of its own locks, undocumented."""
        if name.startswith("__") or name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return f"<{self._record.label} {self._inner!r}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle {type(self._inner).__name__!r} object")


def _reporting(quick: Callable[..., bool], lock: LockRecord) -> Callable[..., bool]:
    def acquire(*args: Any, **kwargs: Any) -> bool:
        got = quick(*args, **kwargs)
        if got:
            registry.report_owner(lock)
        return got

    return acquire


def entering(lock: LockRecord, bare: Any) -> Callable[[], bool]:
    """``__enter__`` of the lock that *bare* takes: ``acquire()`` without arguments."""

    def enter() -> bool:
        if bare(False):
            frame = _getframe(1)
            me = threads.me
            if me.last is not lock:
                taken(me, lock, frame, True)
            lock.owner = me
            lock.code = frame.f_code
            lock.at = frame.f_lasti
            return True
        return contend(lock, bare, -1, _getframe(1))

    return enter


def acquiring(lock: LockRecord, bare: Any) -> Callable[..., bool]:
    """``acquire`` of the lock that *bare* takes."""

    def acquire(blocking: bool = True, timeout: float = -1) -> bool:
        frame = _getframe(1)
        endless = blocking and timeout == -1
        # Arguments that the bare lock refuses are passed on, so that it raises its own error.
        if bare(False) if endless or _is_limit(blocking, timeout) else bare(blocking, timeout):
            me = threads.me
            if me.last is not lock:
                taken(me, lock, frame, endless)
            lock.owner = me
            lock.code = frame.f_code
            lock.at = frame.f_lasti
            return True
        return bool(blocking) and contend(lock, bare, timeout, frame)

    return acquire


def _is_limit(blocking: bool, timeout: Any) -> bool:
    return bool(blocking) and isinstance(timeout, (int, float)) and 0 <= timeout <= threading.TIMEOUT_MAX


class TrackedLock(_Wrapper):
    """A ``threading.Lock`` that knows its owner."""

    __slots__ = ("locked",)

    def __init__(self) -> None:
        inner = _thread.allocate_lock()
        self._begin(inner, make_record("Lock", inner.locked))
        self.locked, self.release, self.__exit__ = inner.locked, inner.release, inner.__exit__


class TrackedRLock(_Wrapper):
    """A ``threading.RLock`` whose owner others can see."""

    __slots__ = ()

    def __init__(self) -> None:
        inner: Any = _thread.RLock()
        self._begin(inner, make_record("RLock", ownership(inner), lambda: is_held_again(inner)))
        self.release, self.__exit__ = inner.release, inner.__exit__

    # What threading.Condition needs of its lock

    def _is_owned(self) -> bool:
        return ownership(self._inner)()

    def _release_save(self) -> tuple[int, int]:
        return release_all(self._inner)  # type: ignore[no-any-return]

    def _acquire_restore(self, state: tuple[int, int]) -> None:
        """Take it as often as it was taken before the wait."""
        for _ in range(state[0]):
            self.acquire()


PlainCondition = threading.Condition
"""The original, which ``patch.py`` replaces."""


class TrackedCondition(BlockingCondition):
    """A ``threading.Condition`` whose waiting threads others can see; events, queues, semaphores and barriers
    are made of it."""

    # Properties, so that the line with the ``with`` calls the lock directly and is noted as the one that takes it.
    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))

    def __init__(self, lock: Any = None) -> None:
        super().__init__(lock)
        self._rl_record = make_record("Condition", bool)

    def block(self, acquire: Acquire, timeout: float) -> bool:
        return wait_for(self._rl_record, acquire, timeout, site_of(_getframe(2)), None)


def join_noting(join: Callable[..., None]) -> Callable[..., None]:
    """``Thread.join``, which notes that the calling thread waits."""

    def noted(thread: threading.Thread, timeout: float | None = None) -> None:
        join(thread, 0 if timeout is None else min(timeout, 0))
        if not thread.is_alive() or (timeout is not None and timeout <= 0):
            return

        def ended(blocking: bool, limit: float) -> bool:
            join(thread, None if limit < 0 else limit)
            return not thread.is_alive()

        site = site_of(_getframe(1))
        end = ThreadEnd(thread.name, registry.place("Thread.join", "", site))
        owner = next((known for known in list(registry.threads) if known.ident == thread.ident), None)
        wait_for(end, ended, -1 if timeout is None else timeout, site, owner)

    return noted

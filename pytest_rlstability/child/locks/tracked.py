"""The locks that stand in for ``threading``'s and ``multiprocessing``'s.

Speed decides their shape. ``with lock:`` looks ``__enter__`` and ``__exit__`` up on the type, and finds slots there,
which hold functions of the one lock: ``__exit__`` and ``release`` are the bare lock's own, written in C, and
``__enter__`` is a small closure that tries the bare lock and notes who took it where. The closures know the lock's
record but not the lock, so that a lock goes when its last reference does.
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

from pytest_rlstability.locks.book import LockRecord, Site, ThreadEnd, ThreadRecord, Waiting, book, taken, threads
from pytest_rlstability.locks.names import assigned_name, place_text, site_of, users_frame

_NOTICE = 0.2
"""Seconds of waiting after which the supervisor is told: a wait that never ends must be known before it blocks."""

_getframe = sys._getframe
Acquire = Callable[[bool, float], bool]


def make_record(kind: str, mine: Callable[[], bool], **more: Callable[[], bool]) -> LockRecord:
    """A record for a lock that is being made: what made it, and on which line of the user's.

    A lock inside an event or a queue goes by the name and kind of that.
    """
    frame, called = users_frame(_getframe(1))
    part = ""
    if called is not None and called.f_code.co_name == "__init__":
        maker = type(called.f_locals.get("self")).__name__.removeprefix("Tracked")
        if maker != kind:
            kind, part = maker, assigned_name(called.f_code, called.f_lasti)
    return LockRecord(book.place(kind, part, (frame.f_code, frame.f_lasti)), mine, **more)


def wait_for(lock: LockRecord, acquire: Acquire, timeout: float, site: Site, on: ThreadRecord | None) -> bool:
    """Call ``acquire(True, timeout)`` (endless when negative), and note how long it took. *on* is who holds it."""
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
    book.tell_wait(me, lock, site, endless=timeout < 0, on=lock.holder or on)
    wrapper = lock.wrapper()
    if wrapper is not None:
        wrapper.announce(True)
    try:
        return acquire(True, timeout)
    finally:
        if wrapper is not None:
            wrapper.announce(False)
        book.tell_done(me)


def contend(lock: LockRecord, acquire: Acquire, timeout: float, frame: FrameType) -> bool:
    """The lock is taken: wait for it, and note that it is ours then."""
    site = site_of(frame)
    if not wait_for(lock, acquire, timeout, site, lock.holder):
        return False
    me = threads.me
    taken(me, lock, frame, timeout < 0)
    lock.owner, (lock.code, lock.at) = me, site
    return True


class _Wrapper:
    """What all wrapped locks share: the slots, and telling who takes the lock while somebody waits for it long."""

    __slots__ = (
        "__enter__",
        "__exit__",
        "__weakref__",
        "_inner",
        "_long_waits",
        "_quick",
        "_record",
        "acquire",
        "release",
    )

    _record: LockRecord
    _inner: Any

    def _begin(self, inner: Any, record: LockRecord) -> None:
        self._inner = inner
        self._record = record
        self._long_waits = 0
        self.__enter__, self.acquire = entering(record, inner.acquire), acquiring(record, inner.acquire)
        record.wrapper = weakref.ref(self)

    def announce(self, waiting: bool) -> None:
        """One thread more, or less, waits long: until the last has ended, whoever takes the lock says so."""
        self._long_waits += 1 if waiting else -1
        if waiting and self._long_waits == 1:
            self._quick = self.__enter__, self.acquire
            self.__enter__ = self.acquire = _telling(self.acquire, self._record)
        elif not waiting and self._long_waits == 0:
            self.__enter__, self.acquire = self._quick

    def _at_fork_reinit(self) -> None:
        self._inner._at_fork_reinit()
        self._record.owner = None

    def __getattr__(self, name: str) -> Any:
        """What the standard library asks of its own locks, and nobody wrote down."""
        if name.startswith("__") or name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return f"<{self._record.label} {self._inner!r}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle {type(self._inner).__name__!r} object")


def _telling(quick: Callable[..., bool], lock: LockRecord) -> Callable[..., bool]:
    def acquire(*args: Any, **kwargs: Any) -> bool:
        got = quick(*args, **kwargs)
        if got:
            book.tell_owner(lock)
        return got

    return acquire


def entering(lock: LockRecord, bare: Any) -> Callable[[], bool]:
    """``__enter__`` of the lock that *bare* takes: what ``acquire()`` does, without arguments to look at."""

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
        # with arguments that it would refuse, the bare lock is asked as it was asked here
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
        self._begin(inner, make_record("RLock", inner._is_owned, again=lambda: "count=1 " not in repr(inner)))
        self.release, self.__exit__ = inner.release, inner.__exit__

    # What threading.Condition asks of its lock.

    def _is_owned(self) -> bool:
        return bool(self._inner._is_owned())

    def _release_save(self) -> tuple[int, int]:
        state: tuple[int, int] = self._inner._release_save()
        return state

    def _acquire_restore(self, state: tuple[int, int]) -> None:
        """Take it again, as often as it was taken before the wait."""
        for _ in range(state[0]):
            self.acquire()


class TrackedCondition(threading.Condition):
    """A ``threading.Condition`` whose waiting threads others can see; events, queues, semaphores and barriers
    are made of it."""

    # not through a function of threading's: who takes it is the line with the ``with``
    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))

    def __init__(self, lock: Any = None) -> None:
        super().__init__(lock)
        self._rl_record = make_record("Condition", bool)

    def wait(self, timeout: float | None = None) -> bool:
        # As in the standard library, but for the wait itself: that one cannot be begun, broken off and begun again
        # without missing a notification in between.
        if not self._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError("cannot wait on un-acquired lock")
        waiter = _thread.allocate_lock()
        waiter.acquire()
        self._waiters.append(waiter)  # type: ignore[attr-defined]
        state = self._release_save()  # type: ignore[attr-defined]
        notified = False
        try:
            if timeout is not None and timeout <= 0:
                notified = waiter.acquire(False)
            else:
                limit = -1 if timeout is None else timeout
                notified = wait_for(self._rl_record, waiter.acquire, limit, site_of(_getframe(1)), None)
            return notified
        finally:
            self._acquire_restore(state)  # type: ignore[attr-defined]
            if not notified:
                try:
                    self._waiters.remove(waiter)  # type: ignore[attr-defined]
                except ValueError:
                    pass


def join_noting(join: Callable[..., None]) -> Callable[..., None]:
    """``Thread.join``, with the wait for the thread's end known to others."""

    def noted(thread: threading.Thread, timeout: float | None = None) -> None:
        join(thread, 0 if timeout is None else min(timeout, 0))
        if not thread.is_alive() or (timeout is not None and timeout <= 0):
            return

        def ended(blocking: bool, limit: float) -> bool:
            join(thread, None if limit < 0 else limit)
            return not thread.is_alive()

        site = site_of(_getframe(1))
        end = ThreadEnd(thread.name, book.place("Thread.join", "", site))
        owner = next((known for known in list(book.threads) if known.ident == thread.ident), None)
        wait_for(end, ended, -1 if timeout is None else timeout, site, owner)

    return noted

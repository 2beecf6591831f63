"""``multiprocessing``'s locks: semaphores of the kernel, which several processes share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from pytest_rlstability.child.locks.names import site_of
from pytest_rlstability.child.locks.registry import LockRecord, taken, threads
from pytest_rlstability.child.locks.tracked import Acquire, contend, make_record, wait_for
from pytest_rlstability.compat.cpython import Semaphore

_getframe = sys._getframe


def track(replace: Callable[[Any, str, Any], None]) -> None:
    """Track every ``multiprocessing`` lock and semaphore that this process makes from now on.

    Copies in other processes are not tracked.
    """
    try:
        from multiprocessing import synchronize
    except ImportError:  # no working semaphores on this platform
        return
    make = synchronize.SemLock.__init__

    def made(semaphore: Any, kind: int, value: int, *rest: Any, **keywords: Any) -> None:
        make(semaphore, kind, value, *rest, **keywords)
        _follow(semaphore, recursive=isinstance(semaphore, synchronize.RLock))

    replace(synchronize.SemLock, "__init__", made)
    # ``with`` looks ``__enter__`` up on the type; the property returns the one lock's function.
    replace(synchronize.SemLock, "__enter__", property(attrgetter("acquire")))


def _follow(semaphore: Any, *, recursive: bool) -> None:
    inner = Semaphore(semaphore)
    again = (lambda: inner.count() > 1) if recursive else bool
    record = make_record(type(semaphore).__name__, inner.is_mine, again=again, here=lambda: bool(inner.count()))

    def waited(blocking: bool, timeout: float) -> bool:
        return bool(inner.acquire(blocking, None if timeout < 0 else timeout))

    semaphore.acquire = (_single if inner.largest == 1 else _counting)(record, inner.acquire, waited)


def _single(lock: LockRecord, bare: Any, waited: Acquire) -> Callable[..., bool]:
    """``acquire`` of a lock, with the argument names of multiprocessing."""

    def acquire(block: bool = True, timeout: float | None = None) -> bool:
        frame = _getframe(1)
        if bare(False):
            me = threads.me
            if me.last is not lock:
                taken(me, lock, frame, block and timeout is None)
            lock.owner = me
            lock.code = frame.f_code
            lock.at = frame.f_lasti
            return True
        return block and contend(lock, waited, -1 if timeout is None else max(timeout, 0.0), frame)

    return acquire


def _counting(record: LockRecord, bare: Any, waited: Acquire) -> Callable[..., bool]:
    """``acquire`` of a semaphore that many may hold: it has no single owner and is not part of the lock order."""

    def acquire(block: bool = True, timeout: float | None = None) -> bool:
        if bare(False):
            return True
        if not block or (timeout is not None and timeout <= 0):
            return False
        return wait_for(record, waited, -1 if timeout is None else timeout, site_of(_getframe(1)), None)

    return acquire

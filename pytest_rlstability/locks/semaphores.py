"""``multiprocessing``'s locks: semaphores of the kernel that several processes may hold."""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from pytest_rlstability.locks.book import LockRecord
from pytest_rlstability.locks.names import site_of
from pytest_rlstability.locks.tracked import acquiring, make_record, wait_for


def track(replace: Callable[[Any, str, Any], None]) -> None:
    """Have every ``multiprocessing`` lock and semaphore made from here on tracked in this process.

    A copy of it in another process is that process's own affair: from here, such a holder is nobody's thread.
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
    # ``with`` looks it up on the type, and gets the function of the one lock.
    replace(synchronize.SemLock, "__enter__", property(attrgetter("acquire")))


def _follow(semaphore: Any, *, recursive: bool) -> None:
    inner = semaphore._semlock
    again = (lambda: bool(inner._count() > 1)) if recursive else bool
    record = make_record(type(semaphore).__name__, inner._is_mine, again=again, here=lambda: bool(inner._count()))

    def bare(blocking: bool = True, timeout: float | None = None) -> bool:
        return bool(inner.acquire(blocking, None if timeout is None or timeout < 0 else timeout))

    semaphore.acquire = _single(record, bare) if inner.maxvalue == 1 else _counting(record, bare)


def _single(record: LockRecord, bare: Callable[..., bool]) -> Callable[..., bool]:
    """``acquire`` of a lock, under the names that multiprocessing gives its arguments."""
    take = acquiring(record, bare)

    def acquire(block: bool = True, timeout: float | None = None) -> bool:
        got = take(block, -1 if timeout is None else max(timeout, 0.0))
        if got:
            record.code, record.at = site_of(sys._getframe(1))
        return got

    return acquire


def _counting(record: LockRecord, bare: Callable[..., bool]) -> Callable[..., bool]:
    """``acquire`` of a semaphore that many may hold: it has no one owner, and no place in the order of locks."""

    def acquire(block: bool = True, timeout: float | None = None) -> bool:
        if bare(False):
            return True
        if not block or (timeout is not None and timeout <= 0):
            return False
        return wait_for(record, bare, -1 if timeout is None else timeout, site_of(sys._getframe(1)), None)

    return acquire

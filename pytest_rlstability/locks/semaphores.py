"""``multiprocessing``'s locks: semaphores of the kernel that several processes may hold."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pytest_rlstability.locks.tracked import acquiring, make_record, site_of, wait_for


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
        _follow(semaphore, recursive=kind == synchronize.RECURSIVE_MUTEX)

    def entered(semaphore: Any) -> Any:
        return semaphore.acquire()

    replace(synchronize.SemLock, "__init__", made)
    replace(synchronize.SemLock, "__enter__", entered)


def _follow(semaphore: Any, *, recursive: bool) -> None:
    inner = semaphore._semlock
    record = make_record(type(semaphore).__name__, inner._is_mine)

    def bare(blocking: bool = True, timeout: float = -1) -> bool:
        return bool(inner.acquire(blocking, None if timeout < 0 else timeout))

    if inner.maxvalue == 1:
        take = acquiring(record, bare, inner._is_mine if recursive else None)
    else:
        take = _counting(record, bare)

    def acquire(block: bool = True, timeout: float | None = None) -> bool:
        if not inner._count():
            record.owner = None  # whoever has it now is not of this process
        got = take(block, -1 if timeout is None else max(timeout, 0.0))
        if got:
            record.code, record.at = site_of(sys._getframe(1))
        return got

    semaphore.acquire = acquire


def _counting(record: Any, bare: Callable[..., bool]) -> Callable[..., bool]:
    """``acquire`` of a semaphore that many may hold: it has no one owner, and no place in the order of locks."""

    def acquire(blocking: bool = True, timeout: float = -1) -> bool:
        if bare(False):
            return True
        if not blocking:
            return False
        return wait_for(record, bare, timeout, site_of(sys._getframe(1)), None)

    return acquire

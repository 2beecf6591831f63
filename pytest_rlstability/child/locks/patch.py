"""Puts the tracked locks in the place of ``threading``'s and ``multiprocessing``'s, and everything back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pytest_rlstability.locks.book import Book, book
from pytest_rlstability.locks.tracked import TrackedCondition, TrackedLock, TrackedRLock, join_noting

_undo: list[Callable[[], None]] = []


def _replace(owner: Any, name: str, value: Any) -> None:
    original = getattr(owner, name)
    setattr(owner, name, value)
    _undo.append(lambda: setattr(owner, name, original))


def install() -> Book:
    """From here on, new locks are tracked. A second call before ``uninstall`` changes nothing.

    Events, semaphores, barriers and queues are made of locks and conditions, and tracked by them.
    """
    if _undo:
        return book
    book.clear()
    _replace(threading, "Lock", TrackedLock)
    _replace(threading, "RLock", TrackedRLock)
    _replace(threading, "Condition", TrackedCondition)
    _replace(threading.Thread, "join", join_noting(threading.Thread.join))
    from pytest_rlstability.locks import semaphores

    semaphores.track(_replace)
    return book


def uninstall() -> None:
    """Give back everything that ``install`` took. Locks made in between go on working."""
    while _undo:
        _undo.pop()()

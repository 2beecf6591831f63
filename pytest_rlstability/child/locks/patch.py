"""Replaces the locks of ``threading`` by tracked ones, and restores them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pytest_rlstability.child.locks.registry import Registry, registry
from pytest_rlstability.child.locks.tracked import TrackedCondition, TrackedLock, TrackedRLock, join_noting

_users: set[str] = set()
_undo: list[Callable[[], None]] = []


def _replace(owner: Any, name: str, value: Any) -> None:
    original = getattr(owner, name)
    setattr(owner, name, value)
    _undo.append(lambda: setattr(owner, name, original))


def install(user: str) -> Registry:
    """Track new locks until every *user* has called ``uninstall``.

    Events, semaphores, barriers and queues are made of locks and conditions, and so are tracked too.
    """
    _users.add(user)
    if _undo:
        return registry
    registry.clear()
    _replace(threading, "Lock", TrackedLock)
    _replace(threading, "RLock", TrackedRLock)
    _replace(threading, "Condition", TrackedCondition)
    _replace(threading.Thread, "join", join_noting(threading.Thread.join))
    return registry


def uninstall(user: str) -> None:
    """Stop tracking for *user*. Locks that were made meanwhile continue to work."""
    _users.discard(user)
    while _undo and not _users:
        _undo.pop()()

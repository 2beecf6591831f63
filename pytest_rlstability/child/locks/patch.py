"""Replaces the locks of ``threading`` by tracked ones, and restores them."""

from __future__ import annotations

import threading

import pytest

from pytest_rlstability.child.locks.registry import Registry, registry
from pytest_rlstability.child.locks.tracked import TrackedCondition, TrackedLock, TrackedRLock, join_noting

_users: set[str] = set()
_patch = pytest.MonkeyPatch()


def install(user: str) -> Registry:
    """Track new locks until every *user* has called ``uninstall``. Events, semaphores, barriers and queues are made of
    locks and conditions, and so are tracked too."""
    if not _users:
        registry.clear()
        _patch.setattr(threading, "Lock", TrackedLock)
        _patch.setattr(threading, "RLock", TrackedRLock)
        _patch.setattr(threading, "Condition", TrackedCondition)
        _patch.setattr(threading.Thread, "join", join_noting(threading.Thread.join))
    _users.add(user)
    return registry


def uninstall(user: str) -> None:
    """Stop tracking for *user*. Locks that were made meanwhile continue to work."""
    _users.discard(user)
    if not _users:
        _patch.undo()

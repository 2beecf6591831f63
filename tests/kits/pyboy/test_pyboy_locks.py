"""Which locks a thread holds, as the guard sees it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from pytest_rlstability.child.locks.patch import install, uninstall
from pytest_rlstability.kits.pyboy.locks import held_locks

OLD_LOCK, OLD_REENTRANT_LOCK, OLD_CONDITION = threading.Lock(), threading.RLock(), threading.Condition()


class Owner:
    def __init__(self) -> None:
        self.lock = threading.Lock()


OLD_OWNER = Owner()


@pytest.fixture(autouse=True)
def tracking() -> Iterator[None]:
    install("test")
    yield
    uninstall("test")


def test_new_locks_know_their_holder() -> None:
    lock, reentrant = threading.Lock(), threading.RLock()
    with lock, reentrant, reentrant:
        assert {record.wrapper() for record in held_locks(None)} == {lock, reentrant}
        others = list[object]()
        thread = threading.Thread(target=lambda: others.append(held_locks(None)))
        thread.start()
        thread.join()
        assert others == [frozenset()]
    assert held_locks(None) == frozenset()


def test_a_lock_may_be_released_by_another_thread() -> None:
    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    assert held_locks(None) == frozenset()


def test_a_condition_gives_its_lock_up_while_it_waits() -> None:
    condition, seen = threading.Condition(), list[object]()
    condition.wait_for(lambda: seen.append(held_locks(None)) or True) if condition.acquire() else None
    assert len(seen[0]) == 1  # type: ignore[arg-type]
    assert not condition.wait(0.001)
    assert len(held_locks(None)) == 1
    condition.release()
    assert held_locks(None) == frozenset()


def test_older_locks_are_found_where_the_caller_can_see_them() -> None:
    with OLD_LOCK:
        assert OLD_LOCK in held_locks(sys._getframe())
    with OLD_REENTRANT_LOCK:
        assert OLD_REENTRANT_LOCK in held_locks(sys._getframe())
    with OLD_OWNER.lock:
        assert OLD_OWNER.lock in held_locks(sys._getframe())
    with OLD_CONDITION:
        assert len(held_locks(sys._getframe())) == 1
    assert held_locks(sys._getframe()) == frozenset()


def test_an_old_reentrant_lock_of_another_thread_is_not_held() -> None:
    taken, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with OLD_REENTRANT_LOCK:
            taken.set()
            enough.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    assert OLD_REENTRANT_LOCK not in held_locks(sys._getframe())
    enough.set()
    thread.join()


def test_locks_inside_threads_and_events_do_not_count() -> None:
    enough = threading.Event()
    thread = threading.Thread(target=enough.wait)
    thread.start()
    assert held_locks(sys._getframe()) == frozenset()
    enough.set()
    thread.join()


def test_the_guard_restores_everything() -> None:
    pytest.importorskip("PIL")
    from pytest_rlstability.kits.pyboy.guard import GuardFactory

    uninstall("test")
    before = threading.Lock, threading.RLock
    with GuardFactory():
        assert before != (threading.Lock, threading.RLock)
    assert before == (threading.Lock, threading.RLock)

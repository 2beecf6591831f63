"""Which locks a thread is taken to hold."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from pytest_rlstability.pyboy.locks import HeldLocks

OLD_LOCK, OLD_REENTRANT_LOCK, OLD_CONDITION = threading.Lock(), threading.RLock(), threading.Condition()


class Owner:
    def __init__(self) -> None:
        self.lock = threading.Lock()


OLD_OWNER = Owner()


@pytest.fixture
def held() -> Iterator[HeldLocks]:
    with HeldLocks() as held:
        yield held


def test_new_locks_know_their_holder(held: HeldLocks) -> None:
    lock, reentrant = threading.Lock(), threading.RLock()
    with lock, reentrant, reentrant:
        assert held.of_caller(None) == {lock, reentrant}
        others = list[object]()
        thread = threading.Thread(target=lambda: others.append(held.of_caller(None)))
        thread.start()
        thread.join()
        assert others == [frozenset()]
    assert held.of_caller(None) == frozenset()


def test_a_lock_may_be_released_by_another_thread(held: HeldLocks) -> None:
    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    assert held.of_caller(None) == frozenset()


def test_a_condition_gives_its_lock_up_while_it_waits(held: HeldLocks) -> None:
    condition, seen = threading.Condition(), list[object]()
    condition.wait_for(lambda: seen.append(held.of_caller(None)) or True) if condition.acquire() else None
    assert len(seen[0]) == 1  # type: ignore[arg-type]
    assert not condition.wait(0.001)
    assert len(held.of_caller(None)) == 1
    condition.release()
    assert held.of_caller(None) == frozenset()


def test_older_locks_are_found_where_the_caller_can_see_them(held: HeldLocks) -> None:
    with OLD_LOCK:
        assert OLD_LOCK in held.of_caller(sys._getframe())
    with OLD_REENTRANT_LOCK:
        assert OLD_REENTRANT_LOCK in held.of_caller(sys._getframe())
    with OLD_OWNER.lock:
        assert OLD_OWNER.lock in held.of_caller(sys._getframe())
    with OLD_CONDITION:
        assert len(held.of_caller(sys._getframe())) == 1
    assert held.of_caller(sys._getframe()) == frozenset()


def test_an_old_reentrant_lock_of_another_thread_is_not_held(held: HeldLocks) -> None:
    taken, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with OLD_REENTRANT_LOCK:
            taken.set()
            enough.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    assert OLD_REENTRANT_LOCK not in held.of_caller(sys._getframe())
    enough.set()
    thread.join()


def test_locks_inside_threads_and_events_do_not_count(held: HeldLocks) -> None:
    enough = threading.Event()
    thread = threading.Thread(target=enough.wait)
    thread.start()
    assert held.of_caller(sys._getframe()) == frozenset()
    enough.set()
    thread.join()


def test_everything_is_put_back() -> None:
    before = threading.Lock, threading.RLock
    with HeldLocks():
        assert before != (threading.Lock, threading.RLock)
    assert before == (threading.Lock, threading.RLock)

"""Which locks a thread holds, as the guard sees it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

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


def held_while_another_thread(holds: Callable[[threading.Event, threading.Event], None]) -> frozenset[object]:
    """What this thread holds while another one is in *holds*."""
    taken, enough = threading.Event(), threading.Event()
    thread = threading.Thread(target=holds, args=(taken, enough))
    thread.start()
    taken.wait()
    try:
        return held_locks(sys._getframe()) | held_locks(sys._getframe(1))
    finally:
        enough.set()
        thread.join()


def stay(taken: threading.Event, enough: threading.Event) -> None:
    taken.set()
    enough.wait()


def hold_old_lock(taken: threading.Event, enough: threading.Event) -> None:
    with OLD_LOCK: stay(taken, enough)  # fmt: skip # noqa: E701


def hold_old_owner(taken: threading.Event, enough: threading.Event) -> None:
    owner = OLD_OWNER
    with owner.lock:
        stay(taken, enough)


def test_an_old_lock_that_another_thread_took_with_a_with_is_not_held() -> None:
    assert OLD_LOCK not in held_while_another_thread(hold_old_lock)
    assert OLD_OWNER.lock not in held_while_another_thread(hold_old_owner)


def test_an_old_lock_counts_as_held_while_others_only_wait_for_it() -> None:
    waits = threading.Event()

    def wait_for_it() -> None:
        waits.set()
        with OLD_LOCK:
            pass

    OLD_LOCK.acquire()
    thread = threading.Thread(target=wait_for_it)
    thread.start()
    waits.wait()
    while not is_blocked(thread):
        time.sleep(0.001)
    assert OLD_LOCK in held_locks(sys._getframe())
    OLD_LOCK.release()
    thread.join()


def is_blocked(thread: threading.Thread) -> bool:
    """Whether its innermost frame is the function that waits, at the ``with``."""
    frame = sys._current_frames()[thread.ident or 0]
    return frame.f_code.co_name == "wait_for_it" and frame.f_lineno == frame.f_code.co_firstlineno + 2


def test_an_old_lock_whose_holder_may_let_it_go_counts_as_held() -> None:
    def let_go(taken: threading.Event, enough: threading.Event) -> None:
        with OLD_LOCK:
            OLD_LOCK.release()
            taken.set()
            enough.wait()
            OLD_LOCK.acquire()

    taken, enough = threading.Event(), threading.Event()
    thread = threading.Thread(target=let_go, args=(taken, enough))
    thread.start()
    taken.wait()
    with OLD_LOCK:
        mine = OLD_LOCK in held_locks(sys._getframe())
    enough.set()
    thread.join()
    assert mine

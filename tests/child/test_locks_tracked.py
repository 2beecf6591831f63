"""Tracked locks are locks: everything that works with the standard library's works with them, and nothing is kept."""

from __future__ import annotations

import _thread
import concurrent.futures
import copy
import gc
import pickle
import queue
import threading
import weakref
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from pytest_rlstability.child.locks.patch import install, uninstall
from pytest_rlstability.child.locks.registry import Registry, Waits
from pytest_rlstability.child.locks.registry import threads as records
from pytest_rlstability.child.locks.tracked import TrackedRLock
from pytest_rlstability.kits.locks.watch import LockWatch


@pytest.fixture
def registry() -> Iterator[Registry]:
    originals = (threading.Lock, threading.RLock, threading.Condition, threading.Thread.join)
    yield install("test")
    uninstall("test")
    assert (threading.Lock, threading.RLock, threading.Condition, threading.Thread.join) == originals


class Holder:
    def __init__(self) -> None:
        self.frame_lock = threading.Lock()
        self.by_name = {"left": threading.Lock()}
        self.by_name["right"] = threading.RLock()


def test_names(registry: Registry) -> None:
    holder = Holder()
    first, second = threading.Lock(), threading.RLock()
    several = [threading.Lock() for _ in range(2)]
    typed: object = threading.Lock()
    spread = threading.Condition(
        threading.RLock(),
    )
    frames = queue.Queue(3)
    go = threading.Event()

    def reset(
        self: object, seed: int = 0, lock: object = threading.Lock(), *, other: object = threading.RLock()
    ) -> None:
        """Locks of the line of the ``def`` are called as the parameters."""

    expected = {
        "lock",
        "other",
        "frame_lock",
        "left",
        "right",
        "first",
        "second",
        "several",
        "typed",
        "spread",
        "frames",
        "go",
    }
    assert {place.name for place in registry.places.values()} == expected
    del holder, first, second, several, typed, spread, frames, go, reset


def test_lock(registry: Registry) -> None:
    lock = threading.Lock()
    assert lock.acquire() is True
    assert lock.locked()
    assert lock.acquire(False) is False
    assert lock.acquire(timeout=0.01) is False
    assert lock.acquire(True, 0.01) is False
    with pytest.raises(ValueError):
        lock.acquire(False, 1)
    with pytest.raises(ValueError):
        lock.acquire(timeout=-2)
    threading.Thread(target=lock.release).start()
    with lock:
        pass
    assert not lock.locked()
    with pytest.raises(RuntimeError):
        lock.release()
    with pytest.raises(TypeError):
        pickle.dumps(lock)
    with pytest.raises(TypeError):
        copy.copy(lock)


def test_what_a_bare_lock_refuses_is_refused_by_one_that_is_free(registry: Registry) -> None:
    for lock in (threading.Lock(), threading.RLock()):
        with pytest.raises(TypeError):
            lock.acquire(timeout=None)  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            lock.acquire(False, 1)
        with pytest.raises(OverflowError):
            lock.acquire(timeout=1e12)
        assert lock.acquire(timeout=5)
        lock.release()
        assert lock.acquire(blocking=False)
        lock.release()


def test_what_the_library_asks_of_its_own_locks(registry: Registry) -> None:
    """resource_tracker's RLock is made here, if it is first imported now."""
    lock = threading.RLock()
    with lock:
        assert lock._is_owned()  # type: ignore[attr-defined]
        if hasattr(_thread.RLock(), "_recursion_count"):
            assert lock._recursion_count() == 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        lock.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_a_lock_taken_by_a_with_is_bound_to_its_owner_and_a_gate_is_not(registry: Registry) -> None:
    lock = threading.Lock()
    gate = threading.Lock()
    again = threading.RLock()
    with lock:
        gate.acquire()
        again.acquire()
        bound = {record.label: record.is_bound for record in records.me.holding()}
        again.release()
        gate.release()
    assert bound == {"lock": True, "gate": False, "again": True}


def test_rlock(registry: Registry) -> None:
    lock = threading.RLock()
    with lock, lock:
        assert lock.acquire(blocking=False)
        lock.release()
    with pytest.raises(RuntimeError):
        lock.release()


@pytest.mark.skipif(not hasattr(_thread.RLock(), "locked"), reason="RLock.locked is of Python 3.14")
@pytest.mark.parametrize("make", [lambda: None, lambda: threading.Lock(), lambda: threading.RLock()])
def test_a_condition_and_its_lock_say_whether_they_are_locked(registry: Registry, make) -> None:
    lock = make()
    condition: Any = threading.Condition(lock)
    with condition:
        assert condition.locked()
        assert lock is None or lock.locked()
    assert not condition.locked()


@pytest.mark.parametrize("make", [lambda: None, lambda: threading.Lock(), lambda: threading.RLock()])
def test_condition(registry: Registry, make) -> None:
    condition = threading.Condition(make())
    seen = []

    def notify() -> None:
        with condition:
            seen.append(1)
            condition.notify_all()

    with condition:
        assert condition.wait(0.01) is False
        threading.Thread(target=notify).start()
        assert condition.wait_for(lambda: seen, timeout=20)
    with pytest.raises(RuntimeError):
        condition.wait()


def test_whoever_takes_a_condition_is_the_line_with_the_with(registry: Registry) -> None:
    condition = threading.Condition()
    with condition:
        (taken,) = records.me.holding()
        assert taken.taken_at.startswith("test_locks_tracked.py:")


@pytest.mark.parametrize("seed", range(20))
def test_what_a_thread_holds_is_known_in_whatever_order_it_lets_go(registry: Registry, seed: int) -> None:
    chance = Random(seed)
    locks = [make() for make in (threading.Lock, threading.Lock, threading.RLock, threading.RLock)]
    held: list[object] = []
    for _ in range(200):
        lock = chance.choice(locks)
        if chance.random() < 0.5 and (lock not in held or isinstance(lock, TrackedRLock)):
            lock.acquire()
            held.append(lock)
        elif lock in held:
            lock.release()
            held.remove(lock)
        if lock not in held and chance.random() < 0.3:
            other = threading.Thread(target=lambda lock=lock: lock.__enter__() and lock.__exit__(None, None, None))
            other.start()
            other.join()
        wrappers = {id(record.wrapper()) for record in records.me.holding()}
        assert wrappers == {id(lock) for lock in held}
    while held:
        held.pop().release()  # type: ignore[attr-defined]


def test_reentrant_condition_gives_its_lock_back(registry: Registry) -> None:
    condition = threading.Condition()
    with condition, condition:
        helper = threading.Thread(target=lambda: condition.acquire() and (condition.notify(), condition.release()))
        helper.start()
        assert condition.wait(20)
    with pytest.raises(RuntimeError):
        condition.release()


def test_everything_made_of_locks(registry: Registry) -> None:
    frames: queue.Queue[int] = queue.Queue(1)
    barrier, semaphore = threading.Barrier(2), threading.BoundedSemaphore(1)
    got = []

    def consume() -> None:
        barrier.wait()
        while (number := frames.get()) >= 0:
            with semaphore:
                got.append(number)
            frames.task_done()
        frames.task_done()

    thread = threading.Thread(target=consume)
    thread.start()
    barrier.wait()
    for number in [*range(200), -1]:
        frames.put(number)
    frames.join()
    thread.join()
    assert got == list(range(200))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(abs, range(100))) == 4950


def test_mutual_exclusion_and_counts(registry: Registry) -> None:
    lock, total = threading.Lock(), [0]

    def work() -> None:
        for _ in range(2000):
            with lock:
                before = total[0]
                total[0] = before + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == [8000]
    assert not LockWatch(registry).inversions


def test_a_lock_goes_with_its_last_reference(registry: Registry) -> None:
    gc.disable()
    try:
        for make in (threading.Lock, threading.RLock):
            lock = make()
            with lock:
                pass
            gone = weakref.ref(lock)
            del lock
            assert gone() is None
    finally:
        gc.enable()


def test_a_thousand_locks_of_one_line_are_one_place(registry: Registry) -> None:
    outer = threading.Lock()
    with outer:
        for _ in range(1000):
            inner = threading.Lock()
            with inner:
                pass
    assert len(registry.places) == 2


def test_percentiles() -> None:
    waits = Waits()
    assert waits.percentile(99) == 0
    for _ in range(98):
        waits.add(0.001)
    waits.add(0.5)
    waits.add(2.0)
    assert waits.percentile(50) == pytest.approx(0.001, rel=0.1)
    assert waits.percentile(99) == pytest.approx(0.5, rel=0.1)
    assert waits.longest == 2.0

"""Which signals order two threads, and which do not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_rlstability.kits.pyboy.ordering import Clock, Order


@pytest.fixture
def order() -> Iterator[Order]:
    with Order() as order:
        yield order


def in_thread(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def knows(clock: Clock, of: tuple[int, int]) -> bool:
    key, time = of
    return clock.get(key, 0) >= time


def moment(order: Order) -> tuple[int, int]:
    return order.key(), order.clock()[order.key()]


def test_start_orders_what_was_before_and_not_what_comes_after(order: Order) -> None:
    before, seen = moment(order), list[Clock]()
    gate = queue.SimpleQueue[None]()  # carries no clock
    thread = in_thread(lambda: (gate.get(), seen.append(dict(order.clock()))))
    after = moment(order)
    gate.put(None)
    thread.join()
    assert knows(seen[0], before)
    assert not knows(seen[0], after)


def test_join_orders_everything(order: Order) -> None:
    moments = list[tuple[int, int]]()
    thread = in_thread(lambda: moments.append(moment(order)))
    thread.join()
    assert knows(order.clock(), moments[0])


def test_waiting_without_joining_does_not_order(order: Order) -> None:
    moments = queue.SimpleQueue[tuple[int, int]]()
    thread = in_thread(lambda: moments.put(moment(order)))
    assert not knows(order.clock(), moments.get())
    thread.join()


def test_a_thread_that_is_seen_dead_is_ordered_without_a_join(order: Order) -> None:
    moments = list[tuple[int, int]]()
    thread = in_thread(lambda: moments.append(moment(order)))
    while thread.is_alive():
        pass
    assert knows(order.clock(), moments[0])


@pytest.mark.parametrize("see", ["wait", "is_set"])
def test_an_event_orders_the_thread_that_sees_it(order: Order, see: str) -> None:
    event, moments = threading.Event(), list[tuple[int, int]]()
    thread = in_thread(lambda: (moments.append(moment(order)), event.set()))
    while not getattr(event, see)():
        pass
    assert knows(order.clock(), moments[0])
    thread.join()


def test_an_event_that_is_not_set_does_not_order(order: Order) -> None:
    event, moments = threading.Event(), queue.SimpleQueue[tuple[int, int]]()
    thread = in_thread(lambda: (event.is_set(), moments.put(moment(order))))
    there = moments.get()
    assert not event.is_set()
    assert not knows(order.clock(), there)
    thread.join()


def test_each_item_of_a_queue_carries_its_own_past(order: Order) -> None:
    channel, moments, done = queue.Queue[int](), list[tuple[int, int]](), queue.SimpleQueue[None]()

    def put() -> None:
        for item in range(2):
            moments.append(moment(order))
            channel.put(item)
        done.put(None)

    thread = in_thread(put)
    done.get()
    channel.get()
    assert knows(order.clock(), moments[0])
    assert not knows(order.clock(), moments[1])
    channel.get()
    assert knows(order.clock(), moments[1])
    thread.join()


@pytest.mark.parametrize("make", [threading.Semaphore, threading.BoundedSemaphore])
def test_a_semaphore_orders_the_thread_that_acquires_it(order: Order, make: type[threading.Semaphore]) -> None:
    semaphore, moments = make(), list[tuple[int, int]]()
    semaphore.acquire()
    thread = in_thread(lambda: (moments.append(moment(order)), semaphore.release()))
    semaphore.acquire()
    assert knows(order.clock(), moments[0])
    thread.join()


def test_a_barrier_orders_both_ways(order: Order) -> None:
    barrier, moments, seen = threading.Barrier(2), list[tuple[int, int]](), list[Clock]()
    thread = in_thread(lambda: (moments.append(moment(order)), barrier.wait(), seen.append(dict(order.clock()))))
    here = moment(order)
    barrier.wait()
    assert knows(order.clock(), moments[0])
    thread.join()
    assert knows(seen[0], here)


def test_a_pool_is_ordered_by_submit_and_result(order: Order) -> None:
    with ThreadPoolExecutor(1) as pool:
        before = moment(order)
        clock, there = pool.submit(lambda: (dict(order.clock()), moment(order))).result()
        assert knows(clock, before)
        assert knows(order.clock(), there)


def test_a_lock_does_not_order(order: Order) -> None:
    lock, moments, done = threading.Lock(), list[tuple[int, int]](), queue.SimpleQueue[None]()

    def hold() -> None:
        with lock:
            moments.append(moment(order))
        done.put(None)

    thread = in_thread(hold)
    done.get()
    with lock:
        assert not knows(order.clock(), moments[0])
    thread.join()


def test_everything_is_put_back() -> None:
    watched = [
        (threading.Event, "set"),
        (threading.Thread, "start"),
        (queue.Queue, "_put"),
        (threading.Barrier, "wait"),
    ]
    before = [getattr(owner, name) for owner, name in watched]
    with Order():
        assert [getattr(owner, name) for owner, name in watched] != before
    assert [getattr(owner, name) for owner, name in watched] == before

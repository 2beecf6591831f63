"""The rule that separates safe shared use of an emulator from races.

Two uses from different threads are safe when neither changes it, when both held a common lock (``locks.py``), or when
one thread signalled the other in between. Everything else is a race, even if the two did not overlap in this run.

Each thread has a vector clock. These pass it on to another thread: starting and joining a thread, an event, a queue,
a semaphore, a condition, a barrier, a future. Taking a lock does **not**: two critical sections may run in either
order, and the order of this run says nothing about the next.
"""

from __future__ import annotations

import _thread
import functools
import itertools
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_rlstability.child.locks.tracked import PlainCondition
from pytest_rlstability.compat.cpython import QUEUE_GET, QUEUE_PUT, BlockingCondition
from pytest_rlstability.model.user_code import Site

Clock = dict[int, int]


@dataclass(frozen=True)
class Access:
    """One use of an emulator."""

    operation: str
    changes: bool
    thread: str
    key: int
    time: int
    locks: frozenset[Any]
    site: Site

    def happened_before(self, present: Clock) -> bool:
        return present.get(self.key, 0) >= self.time

    def conflicts_with(self, later: Access, present: Clock) -> bool:
        if self.key == later.key or not (self.changes or later.changes):
            return False
        return not self.happened_before(present) and not (self.locks & later.locks)


class AccessLog:
    """The uses that a later one can still conflict with: for each thread, the newest per set of locks."""

    def __init__(self) -> None:
        self._newest: dict[tuple[int, frozenset[Any], bool], Access] = {}

    def conflict(self, access: Access, present: Clock) -> Access | None:
        """An earlier use that *access* races with; *present* is what its thread knows."""
        return next((old for old in self._newest.values() if old.conflicts_with(access, present)), None)

    def add(self, access: Access, present: Clock) -> None:
        """Remember *access*, and forget earlier ones that conflict only where *access* does too."""
        if access.changes:
            self._newest = {
                place: old
                for place, old in self._newest.items()
                if not (old.happened_before(present) and access.locks <= old.locks)
            }
        self._newest[(access.key, access.locks, access.changes)] = access

    def is_shared(self, key: int) -> bool:
        """Whether a use by another thread than *key*'s is remembered."""
        return any(old.key != key for old in self._newest.values())

    def unordered(self, key: int, present: Clock) -> list[Access]:
        """The newest uses by other threads that are not ordered before *key*'s present."""
        return [old for old in self._newest.values() if old.key != key and not old.happened_before(present)]


class Order:
    """The clocks of all threads. As a context manager it wraps the standard library's means of signalling, and restores
    them."""

    def __init__(self) -> None:
        self._keys = itertools.count(1)
        self._mine = threading.local()
        self._published: weakref.WeakKeyDictionary[Any, Clock] = weakref.WeakKeyDictionary()
        self._waiting: weakref.WeakKeyDictionary[Any, deque[Clock]] = weakref.WeakKeyDictionary()
        self._mutex = _thread.RLock()  # a finalizer may publish while its thread is in here
        self._patch = pytest.MonkeyPatch()

    def key(self) -> int:
        """This thread's own component of every clock."""
        self.clock()
        return int(self._mine.key)

    def clock(self) -> Clock:
        """Everything this thread knows, its own time included."""
        clock: Clock | None = getattr(self._mine, "clock", None)
        if clock is None:
            self._mine.key = next(self._keys)
            clock = self._mine.clock = {self._mine.key: 1}
        return clock

    def snapshot(self) -> Clock:
        """What this thread knows, for another thread to learn; what it does next is not part of it."""
        clock = self.clock()
        past = dict(clock)
        clock[self._mine.key] += 1
        return past

    def learn(self, past: Clock) -> None:
        _merge(self.clock(), past)

    def publish(self, channel: Any) -> None:
        """Pass what this thread knows on to every thread that observes *channel* later."""
        past = self.snapshot()
        with self._mutex:
            _merge(self._published.setdefault(channel, {}), past)

    def observe(self, channel: Any) -> None:
        with self._mutex:
            self.learn(self._published.get(channel, {}))

    # Wrappers for the standard library

    def __enter__(self) -> Order:
        for owner, name, around in _WRAPPED:
            self._patch.setattr(owner, name, self._wrapped(owner.__dict__[name], around))
        return self

    def __exit__(self, *exception: object) -> None:
        self._patch.undo()

    def _wrapped(self, original: Any, around: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            return around(self, original, *arguments, **keywords)

        return wrapper

    def _publishing(self, original: Any, channel: Any, *arguments: Any, **keywords: Any) -> Any:
        self.publish(channel)
        return original(channel, *arguments, **keywords)

    def _observing(self, original: Any, channel: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original(channel, *arguments, **keywords)
        self.observe(channel)
        return result

    def _observing_when_true(self, original: Any, channel: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original(channel, *arguments, **keywords)
        if result:
            self.observe(channel)
        return result

    def _meeting(self, original: Any, barrier: Any, *arguments: Any, **keywords: Any) -> Any:
        self.publish(barrier)
        return self._observing(original, barrier, *arguments, **keywords)

    def _starting(self, original: Any, thread: threading.Thread) -> Any:
        past, run = self.snapshot(), thread.run

        def run_with_past() -> None:
            self.learn(past)
            try:
                run()
            finally:
                self.publish(thread)

        thread.run = run_with_past  # type: ignore[method-assign]
        return original(thread)

    def _joining(self, original: Any, thread: threading.Thread, *arguments: Any, **keywords: Any) -> Any:
        result = original(thread, *arguments, **keywords)
        if not _is_alive(thread):
            self.observe(thread)
        return result

    def _putting(self, original: Any, channel: Any, item: Any) -> Any:
        # The queue calls this under its own mutex, so the clocks keep the order of the items.
        with self._mutex:
            self._waiting.setdefault(channel, deque()).append(self.snapshot())
        return original(channel, item)

    def _getting(self, original: Any, channel: Any) -> Any:
        waiting = self._waiting.get(channel)
        if waiting:
            self.learn(waiting.popleft())
        return original(channel)

    def _submitting(self, original: Any, executor: Any, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        past = self.snapshot()

        @functools.wraps(function)
        def run_with_past(*inner: Any, **inner_keywords: Any) -> Any:
            self.learn(past)
            return function(*inner, **inner_keywords)

        return original(executor, run_with_past, *arguments, **keywords)


def _merge(clock: Clock, other: Clock) -> None:
    for key, time in other.items():
        clock[key] = max(clock.get(key, 0), time)


_is_alive = threading.Thread.is_alive  # the original: ``Order`` wraps it

_WRAPPED: tuple[tuple[type, str, Callable[..., Any]], ...] = (
    (threading.Event, "set", Order._publishing),
    (PlainCondition, "notify", Order._publishing),
    (threading.Semaphore, "release", Order._publishing),
    (threading.BoundedSemaphore, "release", Order._publishing),
    (Future, "set_result", Order._publishing),
    (Future, "set_exception", Order._publishing),
    (threading.Event, "wait", Order._observing_when_true),
    (threading.Event, "is_set", Order._observing_when_true),
    (PlainCondition, "wait", Order._observing_when_true),
    (BlockingCondition, "wait", Order._observing_when_true),
    (threading.Semaphore, "acquire", Order._observing_when_true),
    (Future, "result", Order._observing),
    (Future, "exception", Order._observing),
    (threading.Barrier, "wait", Order._meeting),
    (threading.Thread, "start", Order._starting),
    (threading.Thread, "join", Order._joining),
    (threading.Thread, "is_alive", Order._joining),
    (queue.Queue, QUEUE_PUT, Order._putting),
    (queue.Queue, QUEUE_GET, Order._getting),
    (ThreadPoolExecutor, "submit", Order._submitting),
)

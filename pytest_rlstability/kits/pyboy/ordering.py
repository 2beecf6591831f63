"""Which uses of an emulator are ordered by what the threads tell each other, whatever the clock says.

Each thread carries a vector clock. Starting and joining a thread, setting and seeing an event, putting and
getting, releasing and acquiring a semaphore, a condition, a barrier and a future hand the clock on. Taking a
lock does **not**: two critical sections exclude each other but may run in either order, and an order that this
run happened to have would hide what the next run does. Locks are judged by being held, in ``locks.py``.
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
from typing import Any

Clock = dict[int, int]

_PUBLISHING = (
    (threading.Event, "set"),
    (threading.Condition, "notify"),
    (threading.Semaphore, "release"),
    (threading.BoundedSemaphore, "release"),
    (Future, "set_result"),
    (Future, "set_exception"),
)
_OBSERVING_WHEN_TRUE = (
    (threading.Event, "wait"),
    (threading.Event, "is_set"),
    (threading.Condition, "wait"),
    (threading.Semaphore, "acquire"),
)
_OBSERVING = ((Future, "result"), (Future, "exception"))


class Order:
    """The clocks of all threads, kept by watching the standard library's means of telling; a context manager
    that puts everything back.

    ``with Order() as order: ... order.clock()`` is the present of the calling thread.
    """

    def __init__(self) -> None:
        self._keys = itertools.count(1)
        self._mine = threading.local()
        self._told: weakref.WeakKeyDictionary[Any, Clock] = weakref.WeakKeyDictionary()
        self._threads: weakref.WeakKeyDictionary[threading.Thread, Clock] = weakref.WeakKeyDictionary()
        self._waiting: weakref.WeakKeyDictionary[Any, deque[Clock]] = weakref.WeakKeyDictionary()
        self._mutex = _thread.RLock()  # a finalizer may publish while its thread is in here
        self._undo: list[Callable[[], None]] = []

    def key(self) -> int:
        """This thread's own component of every clock."""
        self.clock()
        return int(self._mine.key)

    def clock(self) -> Clock:
        """Everything this thread has been told, its own time included."""
        clock: Clock | None = getattr(self._mine, "clock", None)
        if clock is None:
            self._mine.key = next(self._keys)
            clock = self._mine.clock = {self._mine.key: 1}
        return clock

    def snapshot(self) -> Clock:
        """This thread's past, to be handed to somebody; what it does next is not part of it."""
        clock = self.clock()
        past = dict(clock)
        clock[self._mine.key] += 1
        return past

    def learn(self, past: Clock | None) -> None:
        clock = self.clock()
        for key, time in (past or {}).items():
            clock[key] = max(clock.get(key, 0), time)

    def publish(self, channel: Any) -> None:
        """Tell whoever observes *channel* from now on."""
        past = self.snapshot()
        with self._mutex:
            told = self._told.setdefault(channel, {})
            for key, time in past.items():
                told[key] = max(told.get(key, 0), time)

    def observe(self, channel: Any) -> None:
        with self._mutex:
            told = dict(self._told.get(channel, {}))
        self.learn(told)

    # Watching the standard library

    def __enter__(self) -> Order:
        for owner, name in _PUBLISHING:
            self._wrap(owner, name, self._publishing)
        for owner, name in _OBSERVING_WHEN_TRUE:
            self._wrap(owner, name, self._observing_when_true)
        for owner, name in _OBSERVING:
            self._wrap(owner, name, self._observing)
        self._wrap(threading.Barrier, "wait", self._meeting)
        self._wrap(threading.Thread, "start", self._starting)
        self._wrap(threading.Thread, "join", self._joining)
        self._wrap(threading.Thread, "is_alive", self._joining)
        self._wrap(queue.Queue, "_put", self._putting)
        self._wrap(queue.Queue, "_get", self._getting)
        self._wrap(ThreadPoolExecutor, "submit", self._submitting)
        return self

    def __exit__(self, *exception: object) -> None:
        while self._undo:
            self._undo.pop()()

    def _wrap(self, owner: type, name: str, around: Callable[..., Any]) -> None:
        original = owner.__dict__[name]

        @functools.wraps(original)
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            return around(original, *arguments, **keywords)

        setattr(owner, name, wrapper)
        self._undo.append(lambda: setattr(owner, name, original))

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
            with self._mutex:
                self._threads[thread] = self.clock()
            run()

        thread.run = run_with_past  # type: ignore[method-assign]
        return original(thread)

    def _joining(self, original: Any, thread: threading.Thread, *arguments: Any, **keywords: Any) -> Any:
        result = original(thread, *arguments, **keywords)
        if not _is_alive(thread):
            with self._mutex:
                past = dict(self._threads.get(thread, {}))
            self.learn(past)
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


_is_alive = threading.Thread.is_alive
"""As it was before anybody wrapped it."""

"""What is known of every lock and every thread that takes one.

``Threads.me`` is the calling thread's record; a ``LockRecord`` has the thread that took its lock last, and where. An
uncontended lock costs only assignments to both. The rest runs when a thread has to wait, when it takes a second lock
while it holds one, or when a test asks.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from _thread import get_ident, get_native_id
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from pytest_rlstability.child.locks.names import assigned_name, is_with, place_text, site_of
from pytest_rlstability.child.locks.order import Edge, is_known, note_order
from pytest_rlstability.compat.cpython import running_thread
from pytest_rlstability.model.messages import LockTaken, LockWait, Message

Site = tuple[CodeType, int]

_PARTS = {"not_empty": " for an item", "not_full": " for room", "all_tasks_done": " for its tasks"}
"""The conditions of a queue, and what a thread waits for in each."""
_OWNED = ("RLock", "Thread.join")
"""Kinds that only their owner can release."""
_STEPS = 8
"""Buckets per doubling of a waiting time: a percentile is exact to about nine per cent."""
_SHORTEST = 1e-7
_serials = itertools.count(1)


class Waits:
    """Waiting times in seconds, kept as counts in logarithmic buckets; the longest is exact."""

    __slots__ = ("_buckets", "count", "longest")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        bucket = max(0, round(math.log2(max(seconds, _SHORTEST) / _SHORTEST) * _STEPS))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1
        self.longest = max(self.longest, seconds)

    def percentile(self, per_cent: float) -> float:
        """The time that *per_cent* of the waits did not exceed; 0 when there were none."""
        needed = self.count * per_cent / 100
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= needed:
                return min(_SHORTEST * 2 ** (bucket / _STEPS), self.longest)
        return self.longest


class Place:
    """A line that makes locks. They share a name and statistics, so that many short-lived ones need no more memory."""

    __slots__ = ("_name", "_number", "kind", "part", "site", "waits", "worst")

    def __init__(self, kind: str, part: str, site: Site) -> None:
        self.kind = kind
        self.part = part
        self.site = site
        self.waits = Waits()
        self.worst = ""
        self._number = 0
        self._name: str | None = None

    @property
    def name(self) -> str:
        """What the lock was assigned to, else its kind and line."""
        if self._name is None:
            self._name = assigned_name(*self.site) or f"{self.kind} of {self.text}"
        return self._name

    @property
    def text(self) -> str:
        return place_text(*self.site)

    def next_number(self) -> int:
        self._number += 1
        return self._number


class LockRecord:
    """One lock. ``owner``, ``code`` and ``at`` say who took it last and where; they mean nothing once it is free."""

    __slots__ = (
        "__weakref__", "again", "at", "code", "followers", "known_on", "mine", "number", "owner", "place", "serial",
        "wrapper",
    )  # fmt: skip

    def __init__(self, place: Place, mine: Callable[[], bool], again: Callable[[], bool] = bool) -> None:
        """*mine*: does the calling thread hold it? *again*: more than once?"""
        self.owner: ThreadRecord | None = None
        self.code: CodeType | None = None
        self.at = 0
        self.place = place
        self.mine = mine
        self.again = again
        self.number = place.next_number()
        self.serial = next(_serials)
        self.followers: dict[int, Edge] = {}
        self.known_on = 0
        """The serial of a lock that this one is known to be taken on top of."""
        self.wrapper: Callable[[], Any] = lambda: None

    @property
    def label(self) -> str:
        """``frame_lock``; ``frame_lock#2`` for the second made on that line; ``event ready``, ``queue frames``."""
        name = self.place.name if self.number == 1 else f"{self.place.name}#{self.number}"
        kind = "" if self.place.kind in ("Lock", "RLock") else f"{self.place.kind.lower()} "
        return f"{kind}{name}{_PARTS.get(self.place.part, '')}"

    @property
    def is_bound(self) -> bool:
        """Whether only its owner will release it: it was taken by a ``with``, or is an RLock. Another thread may
        release a plain lock that was taken with ``acquire()``."""
        return self.place.kind in _OWNED or (self.code is not None and is_with(self.code, self.at))

    @property
    def taken_at(self) -> str:
        """The line that took it last."""
        return "" if self.code is None else place_text(self.code, self.at)


class ThreadEnd(LockRecord):
    """The end of a thread that another one joins: a lock held by the thread itself."""

    __slots__ = ("_thread",)

    def __init__(self, thread: str, place: Place) -> None:
        super().__init__(place, bool)
        self._thread = thread

    @property
    def label(self) -> str:
        return f"the end of thread {self._thread}"


class ThreadRecord:
    """One thread: what it holds, and what it waits for."""

    __slots__ = ("__weakref__", "_name", "held", "ident", "last", "waiting")

    def __init__(self) -> None:
        self.ident = get_ident()
        self.last: LockRecord | None = None
        self.held: list[LockRecord] = []
        self.waiting: Waiting | None = None
        self._name = f"0x{self.ident:x}"

    @property
    def name(self) -> str:
        """Its name now, or the last one known."""
        thread = running_thread(self.ident)
        if thread is not None:
            self._name = thread.name
        return self._name

    def holding(self) -> list[LockRecord]:
        """What this thread, which must be the caller, holds now. A release is not recorded, so each lock is asked."""
        return [lock for lock in self.held if lock.owner is self and lock.mine()]


@dataclass(frozen=True)
class Waiting:
    """Which lock a thread waits for, where, and since when."""

    lock: LockRecord
    site: Site
    since: float


class Threads(threading.local):
    """``threads.me``: the calling thread's record, made when it is first asked for."""

    def __init__(self) -> None:
        self.me = ThreadRecord()
        registry.threads.add(self.me)


def _discard(message: Message) -> None:
    """The default of ``Registry.send``: no supervisor listens."""


@dataclass
class Registry:
    """Everything known since tracking began."""

    send: Callable[[Message], None] = _discard
    places: dict[tuple[str, str, CodeType, int], Place] = field(default_factory=dict)
    inversions: dict[frozenset[str], str] = field(default_factory=dict)
    threads: weakref.WeakSet[ThreadRecord] = field(default_factory=weakref.WeakSet)

    def clear(self) -> None:
        self.send = _discard
        self.places.clear()
        self.inversions.clear()

    def place(self, kind: str, part: str, site: Site) -> Place:
        key = (kind, part, *site)
        if key not in self.places:
            self.places[key] = Place(kind, part, site)
        return self.places[key]

    def taken(self, me: ThreadRecord, lock: LockRecord, frame: FrameType, ordered: bool) -> None:
        """*me* took *lock*, which is not the one it took last. A lock that was taken without waiting or with a time
        limit cannot be part of a deadlock: it is not *ordered* after those held."""
        held = me.held
        while held:
            top = held[-1]
            if top is not lock and top.owner is me and top.mine():
                break
            held.pop()
        if held and (len(held) > 1 or lock.known_on != held[0].serial):
            self._taken_on(held, me, lock, frame, ordered)
        held.append(lock)
        me.last = lock

    def _taken_on(
        self, held: list[LockRecord], me: ThreadRecord, lock: LockRecord, frame: FrameType, ordered: bool
    ) -> None:
        """Note in which order *lock* was taken, unless that is known; remove from *held* what is not held any more."""
        held[:] = [other for other in held if other is not lock and other.owner is me and other.mine()]
        if ordered and not is_known(held, lock) and not lock.again():
            for cycle in note_order(held, lock, site_of(frame), me.name):
                orders = [str(edge) for edge in cycle]
                text = f"lock order inversion, these can deadlock: {'; '.join(orders)}"
                self.inversions.setdefault(frozenset(orders), text)
        if is_known(held, lock):
            lock.known_on = held[0].serial

    def report_wait(
        self, me: ThreadRecord, lock: LockRecord, site: Site, *, endless: bool, on: ThreadRecord | None
    ) -> None:
        """*me* has waited for a while, and is about to block."""
        self.send(
            LockWait(
                thread=me.ident,
                native=get_native_id(),
                name=me.name,
                lock=lock.serial,
                what=lock.label,
                site=place_text(*site),
                endless=endless,
                holds=[(held.label, held.taken_at) for held in me.holding()],
                **self._owner(lock, on),
            )
        )

    def report_owner(self, lock: LockRecord) -> None:
        """Another thread took *lock*, for which others have waited long."""
        self.send(LockTaken(lock.serial, **self._owner(lock, lock.owner)))

    def _owner(self, lock: LockRecord, owner: ThreadRecord | None) -> dict[str, Any]:
        if owner is None:
            return {}
        return {"owner": owner.ident, "owner_name": owner.name, "owner_site": lock.taken_at, "bound": lock.is_bound}


registry = Registry()
threads = Threads()
taken = registry.taken

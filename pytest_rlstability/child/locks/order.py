"""In which order locks are taken, and whether these orders can deadlock."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import TYPE_CHECKING

from pytest_rlstability.child.locks.names import place_text

if TYPE_CHECKING:
    from pytest_rlstability.child.locks.registry import LockRecord

_LONGEST_CYCLE = 8


class Edge:
    """One lock was taken while another was held: by whom and where. *gates* are the other locks held every time."""

    __slots__ = ("first", "gates", "second", "second_lock", "thread")

    def __init__(
        self, first: LockRecord, second: LockRecord, site: tuple[CodeType, int], thread: str, gates: frozenset[int]
    ) -> None:
        self.first = f"{first.label} ({first.taken_at})"
        self.second = f"{second.label} ({place_text(*site)})"
        self.second_lock = weakref.ref(second)
        self.thread = thread
        self.gates = gates

    def __str__(self) -> str:
        return f"thread {self.thread} takes {self.first}, then {self.second}"


def is_known(held: Sequence[LockRecord], lock: LockRecord) -> bool:
    """Whether it is already noted that *lock* is taken on top of *held*: a quick answer for nearly all cases."""
    if len(held) != 1:
        return False
    edge = held[0].followers.get(lock.serial)
    return edge is not None and not edge.gates


def note_order(
    held: Sequence[LockRecord], lock: LockRecord, site: tuple[CodeType, int], thread: str
) -> Iterator[list[Edge]]:
    """Note that *lock* was taken at *site* on top of *held*; yields the inversions that result: cycles in which each
    thread may hold the lock that the next one waits for."""
    serials = frozenset(other.serial for other in held)
    for other in held:
        gates = serials - {other.serial}
        edge = other.followers.get(lock.serial)
        if edge is None:
            edge = other.followers[lock.serial] = Edge(other, lock, site, thread, gates)
        elif edge.gates <= gates:
            continue
        else:
            edge.gates &= gates
        cycle = _way_back(lock, other, [edge])
        if cycle is not None:
            yield cycle


def _way_back(lock: LockRecord, target: LockRecord, way: list[Edge]) -> list[Edge] | None:
    """Edges that lead from *lock* to *target*, on top of *way*. Two orders that share a gate, a further lock held every
    time, cannot meet."""
    if len(way) >= _LONGEST_CYCLE:
        return None
    for edge in list(lock.followers.values()):
        following = edge.second_lock()
        if following is None or edge in way or any(edge.gates & other.gates for other in way):
            continue
        if following is target:
            return [*way, edge]
        longer = _way_back(following, target, [*way, edge])
        if longer is not None:
            return longer
    return None

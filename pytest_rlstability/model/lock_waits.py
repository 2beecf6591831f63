"""Which thread waits for which, from what the threads of a test send before they block on a tracked lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pytest_rlstability.model.messages import LockTaken, LockWait, LockWaitEnded

Waits = Mapping[int, LockWait]
"""The threads that wait, by ident."""


def update_waits(waits: dict[int, LockWait], message: LockWait | LockTaken | LockWaitEnded) -> None:
    """Take in one message about locks."""
    match message:
        case LockWait():
            waits[message.thread] = message
        case LockWaitEnded(thread):
            waits.pop(thread, None)
        case LockTaken(lock, owner, owner_name, owner_site, bound):
            for thread, wait in waits.items():
                if wait.lock == lock:
                    waits[thread] = replace(
                        wait, owner=owner, owner_name=owner_name, owner_site=owner_site, bound=bound
                    )


def find_cycle(waits: Waits) -> list[int]:
    """Threads each of which waits without a limit for something that the next one holds; empty when there are none."""
    for start in waits:
        way = _way(waits, start)
        if len(set(way)) < len(way):
            return way[way.index(way[-1]) : -1]
    return []


def _way(waits: Waits, start: int) -> list[int]:
    """Thread *start*, the one that it waits for without a limit, and so on; a cycle ends with the thread it came to
    twice."""
    way: list[int] = []
    wait = waits.get(start)
    while wait is not None and wait.endless:
        way.append(wait.thread)
        if wait.owner is None or way.count(wait.thread) > 1:
            break
        wait = waits.get(wait.owner)
    return way


def is_certain(waits: Waits, cycle: list[int]) -> bool:
    """Whether no thread outside the cycle could release a lock in it."""
    return bool(cycle) and all(waits[thread].bound for thread in cycle)


def leads_to(waits: Waits, start: int, cycle: list[int]) -> bool:
    """Whether thread *start* is in the cycle, or waits for one that is."""
    return not set(cycle).isdisjoint(_way(waits, start))


def waits_text(waits: Waits) -> str:
    """One line for each waiting thread, those of the cycle first, each followed by the one it waits for."""
    cycle = find_cycle(waits)
    others = [thread for thread in waits if thread not in cycle]
    return "\n".join(_line(waits[thread]) for thread in [*cycle, *others])


def _line(wait: LockWait) -> str:
    own = [f"{what} ({site})" for what, site in wait.holds]
    holds = f" holds {' and '.join(own)} and" if own else ""
    limit = "" if wait.endless else " for a limited time"
    return f"thread {wait.name}{holds} waits{limit} for {wait.what} ({wait.site}){_holder(wait)}"


def _holder(wait: LockWait) -> str:
    if wait.owner is None or wait.what.startswith("the end of thread"):
        return ""
    site = f" ({wait.owner_site})" if wait.owner_site else ""
    if wait.owner == wait.thread:
        return f", which it holds itself{site}"
    return f", held by thread {wait.owner_name}{site}"

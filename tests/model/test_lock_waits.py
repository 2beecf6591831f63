"""Who waits for whom, from the words of threads that never ran."""

from __future__ import annotations

from pytest_rlstability.model.lock_waits import find_cycle, is_certain, leads_to, update_waits, waits_text
from pytest_rlstability.model.messages import LockTaken, LockWait, LockWaitEnded


def wait(
    thread: int, name: str, what: str, owner: int | None, *, endless: bool = True, lock: int = 0, bound: bool = True
) -> LockWait:
    return LockWait(
        thread=thread, native=thread, name=name, lock=lock or thread, what=what,
        site=f"env.py:{thread}", endless=endless, holds=[], owner=owner, owner_name=f"t{owner}",
        owner_site="", bound=bound,
    )  # fmt: skip


def waiting(*messages: LockWait | LockTaken | LockWaitEnded) -> dict[int, LockWait]:
    waits: dict[int, LockWait] = {}
    for message in messages:
        update_waits(waits, message)
    return waits


def test_a_cycle_and_who_waits_behind_it() -> None:
    waits = waiting(wait(1, "main", "x", 2), wait(2, "a", "y", 3), wait(3, "b", "z", 2), wait(4, "c", "w", 5))
    cycle = find_cycle(waits)
    assert sorted(cycle) == [2, 3]
    assert leads_to(waits, 1, cycle)
    assert leads_to(waits, 2, cycle)
    assert not leads_to(waits, 4, cycle)
    assert [line.split()[1] for line in waits_text(waits).splitlines()] == ["a", "b", "main", "c"]


def test_waits_that_end_are_no_cycle() -> None:
    assert find_cycle(waiting(wait(1, "a", "x", 2), wait(2, "b", "y", 1, endless=False))) == []
    assert find_cycle(waiting(wait(1, "a", "x", 2), wait(2, "b", "y", None))) == []
    assert find_cycle(waiting(wait(1, "a", "x", 2), wait(2, "b", "y", 1), LockWaitEnded(2))) == []


def test_another_thread_took_the_lock_meanwhile() -> None:
    taken = LockTaken(lock=7, owner=3, owner_name="c", owner_site="env.py:9", bound=True)
    waits = waiting(wait(1, "a", "x", 2, lock=7), wait(2, "b", "y", 1, lock=8), taken)
    assert find_cycle(waits) == []
    assert "waits for x (env.py:1), held by thread c (env.py:9)" in waits_text(waits)


def test_itself() -> None:
    waits = waiting(wait(1, "main", "frame_lock", 1))
    assert find_cycle(waits) == [1]
    assert waits_text(waits) == "thread main waits for frame_lock (env.py:1), which it holds itself"


def test_a_cycle_over_a_lock_that_others_may_open_is_not_certain() -> None:
    bound = waiting(wait(1, "a", "x", 2), wait(2, "b", "y", 1))
    assert is_certain(bound, find_cycle(bound))
    gate = waiting(wait(1, "a", "x", 2), wait(2, "b", "y", 1, bound=False))
    assert find_cycle(gate)
    assert not is_certain(gate, find_cycle(gate))
    assert not is_certain(gate, [])

"""What ``rl_locks`` costs a lock that nobody else wants: ``python benchmarks/locks_cost.py``.

A bare and a tracked lock are taken in turns, so that whatever else the machine does hits both; the shortest round of
each counts. Exit code 1 when ``with lock:`` costs more than twice a bare one. ``acquire()`` and ``release()`` called by
hand are shown too: a bare ``acquire`` is one call into C, and a Python function around it cannot be as fast.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

from pytest_rlstability.child.locks.patch import install, uninstall

TAKES, TARGET = 1000, 2.0


def take_with(lock: Any) -> None:
    for _ in range(TAKES):
        with lock:
            pass


def take_by_hand(lock: Any) -> None:
    for _ in range(TAKES):
        lock.acquire()
        lock.release()


def take_nested(locks: tuple[Any, Any]) -> None:
    outer, inner = locks
    for _ in range(TAKES):
        with outer, inner:
            pass


def shortest(take: Callable[[Any], None], bare: Any, tracked: Any, rounds: int) -> tuple[float, float]:
    """Nanoseconds a take of each."""
    best = [float("inf")] * 2
    for round_number in range(rounds):
        for which in (0, 1) if round_number % 2 else (1, 0):
            start = perf_counter()
            take((bare, tracked)[which])
            best[which] = min(best[which], perf_counter() - start)
    return best[0] / TAKES * 1e9, best[1] / TAKES * 1e9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    rounds = parser.parse_args().rounds
    makers: dict[str, Callable[[], Any]] = {
        "Lock": lambda: threading.Lock(),
        "RLock": lambda: threading.RLock(),
        "Condition": lambda: threading.Condition(),
    }
    bare = {name: make() for name, make in makers.items()}
    pair: Any = (threading.Lock(), threading.Lock())
    install("benchmark")
    tracked = {name: make() for name, make in makers.items()}
    tracked_pair: Any = (threading.Lock(), threading.Lock())
    cases: list[tuple[str, Callable[[Any], None], Any, Any]] = [
        *((f"with {name}", take_with, bare[name], tracked[name]) for name in makers),
        *((f"{name}.acquire() and release()", take_by_hand, bare[name], tracked[name]) for name in makers),
        ("with one Lock inside another", take_nested, pair, tracked_pair),
    ]
    ratios = {}
    for name, take, plain, watched in cases:
        before, after = shortest(take, plain, watched, rounds)
        ratios[name] = after / before
        print(f"{name:<46} {before:7.1f} ns bare {after:7.1f} ns tracked {after / before:5.2f} x")
    uninstall("benchmark")
    return 1 if ratios["with Lock"] > TARGET else 0


if __name__ == "__main__":
    sys.exit(main())

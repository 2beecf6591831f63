"""The guard's rule on made-up uses: no emulator, no thread."""

from __future__ import annotations

from typing import Any

from pytest_rlstability.kits.pyboy.ordering import Access, AccessLog
from pytest_rlstability.model.user_code import Site

MAIN, CAPTURE = 1, 2


def use(key: int, time: int, *, changes: bool, locks: frozenset[Any] = frozenset()) -> Access:
    return Access("tick(1)" if changes else "screen.image", changes, f"thread {key}", key, time, locks, Site(()))


def log_of(*uses: Access) -> AccessLog:
    log = AccessLog()
    for one in uses:
        log.add(one, {one.key: one.time})
    return log


def test_two_unordered_threads_race() -> None:
    tick = use(MAIN, 1, changes=True)
    look = use(CAPTURE, 1, changes=False)
    assert log_of(tick).conflict(look, {CAPTURE: 1}) is tick


def test_the_order_of_arrival_does_not_matter() -> None:
    look = use(CAPTURE, 1, changes=False)
    assert log_of(look).conflict(use(MAIN, 1, changes=True), {MAIN: 1}) is look


def test_reading_from_two_threads_is_not_a_race() -> None:
    assert log_of(use(MAIN, 1, changes=False)).conflict(use(CAPTURE, 1, changes=False), {CAPTURE: 1}) is None


def test_what_was_signalled_to_the_thread_is_not_a_race() -> None:
    log = log_of(use(MAIN, 3, changes=True))
    assert log.conflict(use(CAPTURE, 1, changes=True), {CAPTURE: 1, MAIN: 3}) is None


def test_what_came_after_the_signal_is_a_race() -> None:
    log = log_of(use(MAIN, 4, changes=True))
    assert log.conflict(use(CAPTURE, 1, changes=True), {CAPTURE: 1, MAIN: 3}) is not None


def test_uses_under_a_common_lock_do_not_race() -> None:
    log = log_of(use(MAIN, 1, changes=True, locks=frozenset({"screen", "other"})))
    assert log.conflict(use(CAPTURE, 1, changes=False, locks=frozenset({"screen"})), {CAPTURE: 1}) is None


def test_uses_under_different_locks_race() -> None:
    log = log_of(use(MAIN, 1, changes=True, locks=frozenset({"mine"})))
    assert log.conflict(use(CAPTURE, 1, changes=False, locks=frozenset({"yours"})), {CAPTURE: 1}) is not None


def test_one_use_without_the_lock_is_remembered_among_many_with_it() -> None:
    locked, bare = frozenset({"lock"}), use(MAIN, 1, changes=True)
    log = log_of(bare, use(MAIN, 1, changes=True, locks=locked), use(MAIN, 1, changes=True, locks=locked))
    assert log.conflict(use(CAPTURE, 1, changes=False, locks=locked), {CAPTURE: 1}) is bare


def test_what_a_later_change_covers_is_forgotten() -> None:
    log = AccessLog()
    for thread in range(2, 500):
        log.add(use(thread, 1, changes=True), {thread: 1, **dict.fromkeys(range(thread), 1)})
    assert len(log._newest) == 1

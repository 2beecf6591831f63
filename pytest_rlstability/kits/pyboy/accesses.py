"""The rule that separates safe shared use from races.

Two uses of one emulator from different threads are safe when neither changes it, when one thread signalled the
other in between (``ordering.py``), or when both held a common lock (``locks.py``). Everything else is a race, even if
the two did not overlap in this run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_rlstability.kits.pyboy.ordering import Clock
from pytest_rlstability.model.user_code import Site


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

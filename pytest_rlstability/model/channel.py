"""The line from a running test to whoever watches it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest


class Beacon:
    """What a fixture may tell the supervisor while the test runs. This one has nobody listening:
    it stands in where a test runs in pytest's own process.

    ``beat()`` and ``lap(n)`` are a store into shared memory (well under a microsecond) and survive any
    crash; ``stage`` and ``say`` cross as one record each, before the call returns.
    """

    def beat(self) -> None:
        """Progress was made."""

    def lap(self, number: int) -> None:
        """Lap *number* (from 1) begins; this is a beat too."""

    def rest(self) -> None:
        """The last beat for now was made: until the next, the test is watched like one that does not beat."""

    def stage(self, path: tuple[str, ...]) -> None:
        """The test is now inside these stages, outermost first; ``()`` when it left the last one."""

    def say(self, kind: str, record: Mapping[str, object]) -> None:
        """Hand the supervisor one record of a *kind* (``sample``, ``finding``, ...) made of JSON values."""


_test_process = pytest.StashKey[bool]()


def enter_test_process(config: pytest.Config) -> None:
    """From here on this process is a test's own, not pytest's."""
    config.stash[_test_process] = True


def is_test_process(config: pytest.Config) -> bool:
    """Whether this process is a test's own."""
    return config.stash.get(_test_process, False)


_beacon = pytest.StashKey[Beacon]()


def beacon_of(config: pytest.Config) -> Beacon:
    """The beacon of the process that *config* lives in."""
    return config.stash.get(_beacon, None) or config.stash.setdefault(_beacon, Beacon())


def install_beacon(config: pytest.Config, beacon: Beacon) -> None:
    config.stash[_beacon] = beacon

"""Looks at a running test from pytest's process: what may end it, and what only takes notes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_rlstability.config.plan import Plan
    from pytest_rlstability.model.events import Event
    from pytest_rlstability.model.run import Killed, Run
    from pytest_rlstability.session.test_process import TestProcess


class KillCondition(Protocol):
    """What may end a running test. Given by ``pytest_rlstability_kill_conditions``, one object for each run."""

    due: float
    """When to check next, by ``time.monotonic``."""

    def check(self, process: TestProcess) -> Killed | None:
        """Look at the test once, move ``due`` on, and return why the test has to end, if it has to."""


class Observer(Protocol):
    """What only takes notes of a running test. Given by ``pytest_rlstability_observers``, one object for each run."""

    due: float
    """When to observe next, by ``time.monotonic``."""

    def observe(self, process: TestProcess) -> None:
        """Look at the test once, and move ``due`` on."""


@dataclass(frozen=True)
class WatchContext:
    """What a watchdog can use of the session that runs the test."""

    plan: Plan
    """How the test runs, and its limits."""
    run: Run
    """What is known of the run so far; it fills up while the test runs."""
    directory: Path
    """Where the session's processes keep their files."""
    pids: Callable[[], Collection[int]]
    """The pids of all test processes of the session."""
    sample: Callable[[TestProcess, Collection[int]], dict[int, str]]
    """The Python stacks of some threads of a live test, by their native numbers. The test goes on, but a signal may
    have woken it from a wait."""
    emit: Callable[[Event], None]
    """Emits an event: ``emit(Slow(test=run.spec.nodeid, text="no frame for 20 s"))`` prints a line."""

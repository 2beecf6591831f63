"""What a way of getting a process for a test must offer, and the line each one takes in the registry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from pytest_rlstability.isolation.wire import Record


@dataclass(frozen=True)
class Demand:
    """What a test needs of its process before it can be handed over: a spare must have been made for the same."""

    path: Path | None = None
    environment: tuple[tuple[str, str], ...] = ()
    locks: bool = False
    """Whether locks are to be tracked before the test's modules are imported."""


class Backend(Protocol):
    """One way of getting processes. Its keeper brings them into the world; ``Nursery`` does everything else."""

    name: str
    spares: int
    """How many processes to have ready beforehand."""

    def start_keeper(self) -> None:
        """Start the keeper; it greets the hub by itself."""

    def demand(self, item: pytest.Item, environment: tuple[tuple[str, str], ...]) -> Demand:
        """What *item* needs."""

    def order(self, demand: Demand) -> Record:
        """What the keeper is told beyond the serial number."""

    def brief(self, demand: Demand) -> Record | None:
        """What the new process is told before its first job, if anything."""

    def name_of(self, item: pytest.Item) -> object:
        """How a job names *item* to the process."""

    def stop_keeper(self) -> None:
        """Wait for the keeper's end, once its wire is closed."""

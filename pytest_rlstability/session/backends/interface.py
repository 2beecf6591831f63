"""What a backend, a way to get processes for tests, has to offer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from pytest_rlstability.model.messages import PrepareInterpreter, StartProcess


@dataclass(frozen=True)
class ProcessSpec:
    """What a test needs of its process. A process that was started for one spec serves every test with the same."""

    path: Path | None = None
    """The only file whose tests the process can find; None: it can find all of them."""
    environment: tuple[tuple[str, str], ...] = ()
    before_import: tuple[str, ...] = ()
    """Functions (``package.module:name``) to call before the test's modules are imported."""
    fixtures_of: int | None = None
    """The test whose wide fixtures are set up before the process is forked."""

    def finds(self, item: pytest.Item) -> bool:
        """Whether a process of this spec can find *item*."""
        return self.path is None or self.path == item.path


class Backend(Protocol):
    """One way to get processes. ``ProcessPool`` does everything that is the same for all of them."""

    name: str
    spares: int
    """How many processes to have ready beforehand."""

    def start_parent(self) -> None:
        """Start the process that starts the test processes; it connects by itself."""

    def spec(self, item: pytest.Item, environment: tuple[tuple[str, str], ...], *, finds_all: bool) -> ProcessSpec:
        """What *item* needs; with *finds_all* the process must find the tests of every file."""

    def start_order(self, serial: int, spec: ProcessSpec) -> StartProcess:
        """What the parent is sent to start a process."""

    def first_order(self, spec: ProcessSpec) -> PrepareInterpreter | None:
        """What the new process is sent before its first test, if anything."""

    def key_of(self, item: pytest.Item) -> int | str:
        """How the test process is told which test to run."""

    def give_up_preload(self) -> bool:
        """The parent did not start: whether it is worth another try, without the libraries it was to import."""

    def parent_lives(self) -> bool:
        """Whether the parent that was started last still runs."""

    def end_parent(self, grace: float) -> int | None:
        """Wait until the parent has ended, and kill it after *grace* seconds; its status as ``subprocess`` gives it."""

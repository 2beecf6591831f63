"""The zygote backend: every test is forked from a copy of pytest's process that was made before the first test."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress

import pytest

from pytest_rlstability.model.messages import PrepareInterpreter, StartProcess
from pytest_rlstability.parent.zygote import Zygote, run_and_exit
from pytest_rlstability.session.backends.interface import ProcessSpec
from pytest_rlstability.session.connections import Connections


class ZygoteBackend:
    name = "zygote"
    spares = 2

    def __init__(self, session: pytest.Session, connections: Connections, *, hold: bool, seed: int) -> None:
        self._session = session
        self._connections = connections
        self._hold = hold
        self._seed = seed
        self._indices = {id(item): index for index, item in enumerate(session.items)}
        self._pid: int | None = None

    def start_parent(self) -> None:
        self.wait_for_parent()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Threads of pytest-xdist's worker do not cross the fork, and nothing here waits for one.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            run_and_exit(self._become_zygote)
        self._pid = pid

    def _become_zygote(self) -> None:
        self._connections.abandon()
        Zygote(self._session, self._connections.endpoint, hold=self._hold, seed=self._seed).live()

    def spec(self, item: pytest.Item, environment: tuple[tuple[str, str], ...], *, finds_all: bool) -> ProcessSpec:
        return ProcessSpec()

    def start_order(self, serial: int, spec: ProcessSpec) -> StartProcess:
        return StartProcess(serial)

    def first_order(self, spec: ProcessSpec) -> PrepareInterpreter | None:
        return None

    def key_of(self, item: pytest.Item) -> int | str:
        return self._indices[id(item)]

    def wait_for_parent(self) -> None:
        if self._pid is not None:
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = None

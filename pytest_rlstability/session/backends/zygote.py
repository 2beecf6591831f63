"""The zygote backend: every test is forked from a copy of pytest's process that was made before the first test."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress

import pytest

from pytest_rlstability.model.messages import PrepareInterpreter, StartProcess
from pytest_rlstability.session.backends.interface import ProcessSpec
from pytest_rlstability.session.connections import Connections

if sys.platform == "linux":
    from pytest_rlstability.parent.fixture_zygote import FixtureZygote
    from pytest_rlstability.parent.zygote import Zygote, run_and_exit

assert sys.platform == "linux"


class ZygoteBackend:
    name = "zygote"
    spares = 2
    _zygote: type[Zygote] = Zygote

    def __init__(
        self, session: pytest.Session, connections: Connections, *, hold: bool, preload: Sequence[str] = ()
    ) -> None:
        self._preload = preload
        self._session = session
        self._connections = connections
        self._hold = hold
        self._indices = {id(item): index for index, item in enumerate(session.items)}
        self._pid: int | None = None
        self._status: int | None = None

    def start_parent(self) -> None:
        self.end_parent(0.0)
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Threads of pytest-xdist's worker do not cross the fork, and nothing here waits for one.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            run_and_exit(self._become_zygote)
        self._pid, self._status = pid, None

    def give_up_preload(self) -> bool:
        """Make the next parent without the libraries that this one may have died of; False if it had none."""
        given_up, self._preload = bool(self._preload), ()
        return given_up

    def _become_zygote(self) -> None:
        self._connections.abandon()
        endpoint = self._connections.endpoint
        self._zygote(self._session, endpoint, hold=self._hold, preload=self._preload).live()

    def spec(self, item: pytest.Item, environment: tuple[tuple[str, str], ...], *, finds_all: bool) -> ProcessSpec:
        return ProcessSpec()

    def start_order(self, serial: int, spec: ProcessSpec) -> StartProcess:
        return StartProcess(serial)

    def first_order(self, spec: ProcessSpec) -> PrepareInterpreter | None:
        return None

    def key_of(self, item: pytest.Item) -> int | str:
        return self._indices[id(item)]

    def parent_lives(self) -> bool:
        return self._pid is not None and self._reap(os.WNOHANG) is None

    def end_parent(self, grace: float) -> int | None:
        if self._pid is None:
            return None
        until = time.monotonic() + grace
        while (status := self._reap(os.WNOHANG)) is None:
            if time.monotonic() >= until:
                os.kill(self._pid, signal.SIGKILL)
                status = self._reap(0)
                break
            time.sleep(0.005)
        self._pid = None
        return status

    def _reap(self, options: int) -> int | None:
        """The parent's status, once it has ended."""
        if self._status is None and self._pid is not None:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self._pid, options)
                self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status


class FixtureBackend(ZygoteBackend):
    """Forks from a zygote that has set up the test's wide fixtures. It makes no spares: to set up the fixtures of the
    next test may mean to tear down those of the one that runs."""

    spares = 0
    _zygote = FixtureZygote

    def spec(self, item: pytest.Item, environment: tuple[tuple[str, str], ...], *, finds_all: bool) -> ProcessSpec:
        return ProcessSpec(fixtures_of=self._indices[id(item)])

    def start_order(self, serial: int, spec: ProcessSpec) -> StartProcess:
        return StartProcess(serial, fixtures_of=spec.fixtures_of)

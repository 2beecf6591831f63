"""The process pools of a run, one for each backend that its tests use, and whether forking is safe here."""

from __future__ import annotations

import os
import sys

import pytest

from pytest_rlstability.config.options import Settings
from pytest_rlstability.osinfo.fork_safety import ThreadsAtStart
from pytest_rlstability.session.backends.interface import Backend
from pytest_rlstability.session.backends.spawn import SpawnBackend
from pytest_rlstability.session.connections import Connections
from pytest_rlstability.session.process_pool import ProcessPool

_CANARY_LIMIT = 5.0
FIXTURES = "zygote with fixtures"
"""The pool for tests that share wide fixtures but no process."""

_threads = pytest.StashKey[ThreadsAtStart]()


def threads_at_start(config: pytest.Config) -> ThreadsAtStart:
    """The threads that were there when this was called first: before any conftest."""
    return config.stash.setdefault(_threads, ThreadsAtStart())


class Pools:
    """``get(name)`` gives the pool of a backend. ``auto`` means zygote, or spawn where forking is not safe."""

    def __init__(self, session: pytest.Session, settings: Settings, connections: Connections) -> None:
        self._session = session
        self._settings = settings
        self._connections = connections
        self._pools: dict[str, ProcessPool] = {}
        self.reason_against_fork = ""
        self.preload: list[str] = []
        """The libraries that a zygote imports before it forks."""

    def check_fork(self) -> None:
        """Find out whether forking is safe, before the first test."""
        self.reason_against_fork = (
            _reason_against_fork() or threads_at_start(self._session.config).reason_against_fork() or self._ask_canary()
        )

    def get(self, name: str) -> ProcessPool:
        if name == "auto":
            name = "spawn" if self.reason_against_fork else "zygote"
        if name not in self._pools:
            self._pools[name] = ProcessPool(self._connections, self._backend(name))
        return self._pools[name]

    def give_up_fork(self, reason: str) -> None:
        """From now on ``auto`` means spawn."""
        self.reason_against_fork = reason

    def stop(self) -> None:
        for pool in self._pools.values():
            pool.stop()

    def _backend(self, name: str) -> Backend:
        hold = self._settings.holds_crashes
        if name != "spawn":
            from pytest_rlstability.session.backends.zygote import FixtureBackend, ZygoteBackend

            backend = FixtureBackend if name == FIXTURES else ZygoteBackend
            return backend(self._session, self._connections, hold=hold, preload=self.preload)
        return SpawnBackend(self._session, self._connections, hold=hold, seed=self._settings.seed)

    def _ask_canary(self) -> str:
        """Have a forked process use the native threads that this one may have used, and see whether it ends."""
        if self.get("zygote").survives_canary(_CANARY_LIMIT):
            return ""
        return "a forked process hangs or dies in its first parallel computation (threads were used before the fork)"


def _reason_against_fork() -> str:
    """Why forking is not safe on this platform or in this state; empty when it is."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return f"forking is not safe on {sys.platform}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialised, and does not survive a fork"
    return ""

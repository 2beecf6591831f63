"""The process pools of a run, one for each backend that its tests use, and whether forking is safe here."""

from __future__ import annotations

import sys

import pytest

from pytest_rlstability.config.options import Settings
from pytest_rlstability.osinfo import CAN_FORK
from pytest_rlstability.osinfo.fork_safety import ThreadsAtStart
from pytest_rlstability.session.backends.interface import Backend
from pytest_rlstability.session.backends.spawn import SpawnBackend
from pytest_rlstability.session.connections import Connections
from pytest_rlstability.session.process_pool import NoProcessError, ProcessPool

_CANARY_LIMIT = 5.0
FIXTURES = "zygote with fixtures"
"""The pool for tests that share wide fixtures but no process."""
_REDUCED = "; reduced there: stalls are seen by Python stacks only, crashes have no native stack, imports no guard"
"""What ``docs/platforms.md`` says of systems other than Linux."""

_threads = pytest.StashKey[ThreadsAtStart]()


def threads_at_start(config: pytest.Config) -> ThreadsAtStart:
    """The threads that were there when this was called first: before any conftest."""
    return config.stash.setdefault(_threads, ThreadsAtStart())


class Pools:
    """``get(name)`` gives the pool of a backend. ``auto`` means the first in the order of the backends that works."""

    def __init__(self, session: pytest.Session, settings: Settings, connections: Connections) -> None:
        self._session = session
        self._settings = settings
        self._connections = connections
        self._pools: dict[str, ProcessPool] = {}
        self._order = ["zygote", "template", "spawn"] if CAN_FORK else ["spawn"]
        self.reason_against_fork = "" if CAN_FORK else f"tests cannot be forked on {sys.platform}{_REDUCED}"
        self.preload: list[str] = []
        """The libraries that a zygote imports before it forks."""

    @property
    def auto(self) -> str:
        """The backend that ``auto`` means now."""
        return self._order[0]

    def check_fork(self, *, find_other: bool) -> None:
        """Find out whether forking is safe, before the first test; with *find_other* which backend is, if it is not."""
        if not CAN_FORK:
            return
        if reason := reason_against_fork(self._session.config):
            self.give_up(reason)
        while self.auto != "spawn" and (find_other or not reason) and not self._survives_canary(self.auto):
            reason = "a forked process hangs or dies in its first parallel computation"
            self.give_up(reason)

    def get(self, name: str) -> ProcessPool:
        if name == "auto":
            name = self.auto
        if name not in self._pools:
            self._pools[name] = ProcessPool(self._connections, self._backend(name))
        return self._pools[name]

    def give_up(self, reason: str) -> bool:
        """From now on ``auto`` means the next backend; False if there is none."""
        if len(self._order) == 1:
            return False
        self._order.pop(0)
        self.reason_against_fork = self.reason_against_fork or reason
        return True

    def stop(self) -> None:
        for pool in self._pools.values():
            pool.stop()

    def _backend(self, name: str) -> Backend:
        hold, seed = self._settings.holds_crashes, self._settings.seed
        if name == "spawn":
            return SpawnBackend(self._session, self._connections, hold=hold, seed=seed)
        if sys.platform == "linux":
            if name == "template":
                from pytest_rlstability.session.backends.template import TemplateBackend

                return TemplateBackend(self._session, self._connections, hold=hold, seed=seed)
            from pytest_rlstability.session.backends.zygote import FixtureBackend, ZygoteBackend

            backend = FixtureBackend if name == FIXTURES else ZygoteBackend
            return backend(self._session, self._connections, hold=hold, preload=self.preload)
        raise NotImplementedError(name)

    def _survives_canary(self, name: str) -> bool:
        """Have a forked process use the native threads that its parent may have used, and see whether it ends."""
        try:
            return self.get(name).survives_canary(_CANARY_LIMIT)
        except NoProcessError:
            return False


def reason_against_fork(config: pytest.Config) -> str:
    """Why a fork of this process is not safe in its state; empty when it is."""
    if not CAN_FORK:
        return f"tests cannot be forked on {sys.platform}{_REDUCED}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialised, and does not survive a fork"
    return threads_at_start(config).reason_against_fork()

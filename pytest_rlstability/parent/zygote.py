"""The zygote: a copy of pytest's process, made after collection and before the first test, that never runs
anything itself. Every test is forked from it and so starts from the same clean state, whatever ran before."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from os import _exit  # bound here: a test may replace it
from typing import NoReturn

import pytest

from pytest_rlstability.isolation import kernel
from pytest_rlstability.isolation.child import Child, Link
from pytest_rlstability.isolation.collector import freeze_until_asked
from pytest_rlstability.isolation.farewell import forget_inherited_exits
from pytest_rlstability.isolation.footprint import Footprint
from pytest_rlstability.isolation.hub import Hub
from pytest_rlstability.isolation.keeper import Keeper, greet_hub
from pytest_rlstability.isolation.protocol import Demand
from pytest_rlstability.isolation.wire import Record


class ZygoteBackend:
    name = "zygote"
    spares = 2

    def __init__(self, session: pytest.Session, hub: Hub, *, hold: bool, seed: int) -> None:
        self._session = session
        self._hub = hub
        self._hold = hold
        self._seed = seed
        self._indices = {id(item): index for index, item in enumerate(session.items)}
        self._pid: int | None = None

    def start_keeper(self) -> None:
        self.stop_keeper()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Threads of pytest-xdist's worker do not cross the fork, and nothing here waits for one.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _run_to_the_end(_Zygote(self._session, self._hub, hold=self._hold, seed=self._seed).live)
        self._pid = pid

    def demand(self, item: pytest.Item, environment: tuple[tuple[str, str], ...]) -> Demand:
        return Demand()

    def order(self, demand: Demand) -> Record:
        return {}

    def brief(self, demand: Demand) -> Record | None:
        return None

    def name_of(self, item: pytest.Item) -> object:
        return self._indices[id(item)]

    def stop_keeper(self) -> None:
        if self._pid is not None:
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = None


class _Zygote:
    def __init__(self, session: pytest.Session, hub: Hub, *, hold: bool, seed: int) -> None:
        hub.drop()
        self._session = session
        self._hub = hub.address
        self._token = hub.token
        self._directory = hub.directory
        self._hold = hold
        self._seed = seed

    def live(self) -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        forget_inherited_exits()
        self._child = Child(self._session, self._directory, seed=self._seed, hold=self._hold, finalizing=False)
        self._footprint = Footprint(self._directory)
        self._collecting = gc.isenabled()
        gc.disable()
        freeze_until_asked()
        self._wire = greet_hub(self._hub, self._token)
        Keeper(self._wire, self._bear, self._directory).serve()

    def _bear(self, order: Record) -> int:
        self._footprint.refresh()
        pid = os.fork()
        if pid == 0:
            _run_to_the_end(lambda: self._become_test(order))
        return pid

    def _become_test(self, order: Record) -> None:
        self._footprint.prepare()
        os.setsid()
        kernel.die_with_parent()
        self._wire.drop()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if order.get("canary"):
            exercise_native_threads()
            return
        link = Link.open(self._hub, self._token, order["serial"])
        self._child.attach(link)
        if self._collecting:
            gc.enable()
        try:
            self._child.work(lambda index: self._session.items[int(str(index))])
        except BaseException:
            link.wire.send({"kind": "fault", "traceback": traceback.format_exc()})
            raise
        self._footprint.learn()


def exercise_native_threads() -> None:
    """The canary's song: a parallel region in each numeric library that is loaded. After an unsafe fork it
    never returns."""
    if torch := sys.modules.get("torch"):
        matrix = torch.ones(400, 400)
        (matrix @ matrix).sum().item()
    if numpy := sys.modules.get("numpy"):
        square = numpy.ones((400, 400))
        (square @ square).sum()


def _run_to_the_end(life: Callable[[], None]) -> NoReturn:
    """Run *life* in a forked process; nothing of the parent's stack is ever returned to."""
    code = 0
    try:
        life()
    except BaseException:
        code = 70
        traceback.print_exc()
    finally:
        _exit(code)

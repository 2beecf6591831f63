"""The spawn backend: a fresh interpreter for every test, that finds the test by collecting its file again."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pytest_rlstability.isolation import coverage
from pytest_rlstability.isolation.hub import Hub
from pytest_rlstability.isolation.protocol import Demand
from pytest_rlstability.isolation.wire import Record


class SpawnBackend:
    name = "spawn"
    spares = 1

    def __init__(self, session: pytest.Session, hub: Hub, *, hold: bool, seed: int) -> None:
        self._config = session.config
        self._hub = hub
        self._hold = hold
        self._seed = seed
        self._keeper: subprocess.Popen[bytes] | None = None

    def start_keeper(self) -> None:
        self.stop_keeper()
        command = [sys.executable, "-m", "pytest_rlstability.isolation.keeper"]
        # A session of its own: Ctrl-C is for pytest, which ends its tests in order.
        self._keeper = subprocess.Popen(
            [*command, json.dumps(self._hub.address), self._hub.token, str(self._hub.directory)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,
        )

    def demand(self, item: pytest.Item, environment: tuple[tuple[str, str], ...]) -> Demand:
        return Demand(item.path, environment, "rl_locks" in getattr(item, "fixturenames", ()))

    def order(self, demand: Demand) -> Record:
        environment = dict(os.environ)
        environment.setdefault("PYTHONHASHSEED", str(self._seed % 2**32))
        environment.update(demand.environment)
        environment.pop("PYTEST_CURRENT_TEST", None)
        return {
            "python": sys.executable,
            "environment": environment,
            "directory": os.getcwd(),
            "hub": self._hub.address,
            "token": self._hub.token,
        }

    def brief(self, demand: Demand) -> Record | None:
        config = self._config
        worker_input = getattr(config, "workerinput", None)
        return {
            "kind": "brief",
            "directory": str(self._hub.directory),
            "arguments": _arguments(config),
            "invocation_directory": str(config.invocation_params.dir),
            "path": str(demand.path),
            "sys_path": sys.path,
            "argv": sys.argv,
            "basetemp": _basetemp(config),
            "worker_input": worker_input,
            "hold": self._hold,
            "seed": self._seed,
            "coverage": coverage.configuration(),
            "locks": demand.locks,
        }

    def name_of(self, item: pytest.Item) -> object:
        return _plain_nodeid(item)

    def stop_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.wait()
            self._keeper = None


def _arguments(config: pytest.Config) -> list[str]:
    """What the user typed; pytest-cov's part in it is played by us (see ``coverage``)."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    return [*arguments, "--no-cov"] if config.pluginmanager.hasplugin("pytest_cov") else arguments


def _plain_nodeid(item: pytest.Item) -> str:
    """The node id as collection gives it: without the group that xdist's ``--dist=loadgroup`` hangs on it."""
    groups = {str(word) for mark in item.iter_markers("xdist_group") for word in (*mark.args, *mark.kwargs.values())}
    return item.nodeid.removesuffix("@" + "_".join(sorted(groups))) if groups else item.nodeid


def _basetemp(config: pytest.Config) -> str | None:
    factory = getattr(config, "_tmp_path_factory", None)
    return None if factory is None else str(factory.getbasetemp())

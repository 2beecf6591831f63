"""The spawn backend: a fresh interpreter for every test, which finds the test by collecting its file again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pytest_rlstability.child import coverage
from pytest_rlstability.child.unimportable import UNIMPORTABLE
from pytest_rlstability.compat.pytest import base_temp
from pytest_rlstability.model.messages import PrepareInterpreter, StartProcess
from pytest_rlstability.osinfo.process_control import OWN_SESSION
from pytest_rlstability.session.backends.interface import ProcessSpec
from pytest_rlstability.session.connections import Connections


class SpawnBackend:
    name = "spawn"
    spares = 1

    def __init__(self, session: pytest.Session, connections: Connections, *, hold: bool, seed: int) -> None:
        self._config = session.config
        self._endpoint = connections.endpoint
        self._hold = hold
        self._seed = seed
        self._parent: subprocess.Popen[bytes] | None = None

    def start_parent(self) -> None:
        command = [sys.executable, "-m", "pytest_rlstability.parent.spawn", str(self._endpoint.directory)]
        paths = os.pathsep.join(path for path in sys.path if path)
        self._start_parent(command, {**os.environ, "PYTHONPATH": paths})

    def _start_parent(self, command: list[str], environment: dict[str, str]) -> None:
        self.end_parent(0.0)
        # A session of its own: Ctrl-C is for pytest, which ends its tests in order.
        self._parent = subprocess.Popen(command, env=environment, **OWN_SESSION)

    def spec(self, item: pytest.Item, environment: tuple[tuple[str, str], ...], *, finds_all: bool) -> ProcessSpec:
        if finds_all:
            return ProcessSpec(None, environment)
        return ProcessSpec(item.path, environment, tuple(item.ihook.pytest_rlstability_before_import(item=item)))

    def start_order(self, serial: int, spec: ProcessSpec) -> StartProcess:
        environment = {**self._environment(), **dict(spec.environment)}
        return StartProcess(serial, python=sys.executable, environment=environment, directory=os.getcwd())

    def _environment(self) -> dict[str, str]:
        """The variables that the interpreter of a test is started with."""
        environment = {"PYTHONHASHSEED": str(self._seed % 2**32), **os.environ}
        environment.pop("PYTEST_CURRENT_TEST", None)
        return environment

    def first_order(self, spec: ProcessSpec) -> PrepareInterpreter | None:
        config = self._config
        temporary = base_temp(config)
        return PrepareInterpreter(
            arguments=_arguments(config),
            invocation_directory=str(config.invocation_params.dir),
            path="" if spec.path is None else str(spec.path),
            sys_path=sys.path,
            argv=sys.argv,
            basetemp=None if temporary is None else str(temporary),
            worker_input=getattr(config, "workerinput", None),
            hold_crashes=self._hold,
            seed=self._seed,
            coverage=coverage.configuration(),
            before_import=spec.before_import,
            unimportable=config.stash.get(UNIMPORTABLE, ()),
        )

    def key_of(self, item: pytest.Item) -> int | str:
        return _plain_nodeid(item)

    def give_up_preload(self) -> bool:
        return False

    def parent_lives(self) -> bool:
        return self._parent is not None and self._parent.poll() is None

    def end_parent(self, grace: float) -> int | None:
        parent, self._parent = self._parent, None
        if parent is None:
            return None
        try:
            return parent.wait(grace)
        except subprocess.TimeoutExpired:
            parent.kill()
            return parent.wait()


def _arguments(config: pytest.Config) -> list[str]:
    """What the user typed. Coverage is measured by us, not by pytest-cov (see ``child.coverage``)."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    return [*arguments, "--no-cov"] if config.pluginmanager.hasplugin("pytest_cov") else arguments


def _plain_nodeid(item: pytest.Item) -> str:
    """The node id as collection gives it: without the group that xdist's ``--dist=loadgroup`` adds to it."""
    groups = {str(word) for mark in item.iter_markers("xdist_group") for word in (*mark.args, *mark.kwargs.values())}
    return item.nodeid.removesuffix("@" + "_".join(sorted(groups))) if groups else item.nodeid

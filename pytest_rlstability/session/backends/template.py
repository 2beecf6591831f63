"""The template backend: tests are forked from a fresh interpreter that has imported the libraries of the suite."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_rlstability.compat.pytest import is_rewritten
from pytest_rlstability.model.messages import StartProcess
from pytest_rlstability.model.user_code import Origin, origin
from pytest_rlstability.osinfo.helper_process import module_command
from pytest_rlstability.session.backends.interface import ProcessSpec
from pytest_rlstability.session.backends.spawn import SpawnBackend
from pytest_rlstability.session.connections import Connections

if sys.platform == "linux":
    from pytest_rlstability.parent.template import libraries_file

assert sys.platform == "linux"

_KEY = "rlstability/start_threads"
"""In pytest's cache: packages that start threads when they are imported."""


class TemplateBackend(SpawnBackend):
    name = "template"

    def __init__(self, session: pytest.Session, connections: Connections, *, hold: bool, seed: int) -> None:
        super().__init__(session, connections, hold=hold, seed=seed)
        self._libraries = libraries_file(connections.directory)
        self._cache = getattr(session.config, "cache", None)
        unfit = set() if self._cache is None else {*self._cache.get(_KEY, [])}
        found = loaded_libraries(session.config.rootpath)
        self._wanted = [name for name in found if name.partition(".")[0] not in unfit]
        self._libraries.write_text("\n".join(self._wanted))

    def start_parent(self) -> None:
        command = module_command("pytest_rlstability.parent.template", str(self._endpoint.directory))
        self._start_parent(command, self._environment())

    def end_parent(self, grace: float) -> int | None:
        self._remember_unfit()
        return super().end_parent(grace)

    def _remember_unfit(self) -> None:
        """The next run need not find out which packages start threads when they are imported."""
        imported = self._libraries.read_text().split() if self._libraries.exists() else []
        left_out = {name.partition(".")[0] for name in self._wanted} - {name.partition(".")[0] for name in imported}
        if self._cache is not None and imported and left_out:
            self._cache.set(_KEY, sorted({*self._cache.get(_KEY, []), *left_out}))

    def give_up_preload(self) -> bool:
        """Make the next parent without the libraries that this one may have died of; False if it had none."""
        given_up = bool(self._libraries.read_text())
        self._libraries.write_text("")
        return given_up

    def spec(self, item: pytest.Item, environment: tuple[tuple[str, str], ...], *, finds_all: bool) -> ProcessSpec:
        return super().spec(item, (), finds_all=finds_all)  # the interpreter has started

    def start_order(self, serial: int, spec: ProcessSpec) -> StartProcess:
        return StartProcess(serial)


def loaded_libraries(project: Path) -> Iterator[str]:
    """The modules of this process that belong to libraries or to us, in the order of their import.

    Not what pytest has rewritten for its assertions: it must come after pytest, and pytest is started in the test's
    process. Nor a package of the *project* that is also installed.
    """
    own = {path.name for pattern in ("*", "src/*") for path in project.glob(pattern) if path.is_dir()}
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        whose = origin(file) if isinstance(file, str) else None
        is_fit = not is_rewritten(module) and name.partition(".")[0] not in own
        if whose is Origin.OURS or (whose is Origin.LIBRARY and is_fit):
            yield name

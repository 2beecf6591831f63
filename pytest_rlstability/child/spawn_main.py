"""``python -m pytest_rlstability.isolation.spawned HUB TOKEN SERIAL``: a test's process of the spawn backend."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before anything of pytest's: sys.path is not yet what the user's run had.
from pytest_rlstability.isolation import kernel
from pytest_rlstability.isolation.wire import Record

# Options of pytest and well-known plugins that are the business of pytest's own process.
_QUIET_OPTIONS: dict[str, Any] = {
    "usepdb": False, "trace": False, "collectonly": False, "dist": "no", "numprocesses": None, "tx": [],
    "looponfail": False, "lf": False, "failedfirst": False, "newfirst": False, "stepwise": False,
    "stepwise_skip": False, "cacheclear": False, "log_file_mode": "a",
}  # fmt: skip


class FreshSession:
    """A plugin object: collects the one file that holds the test, and runs what the supervisor sends."""

    def __init__(self, path: str, work: Callable[[Any], None]) -> None:
        self._path = path
        self._work = work

    def pytest_collection(self, session: Any) -> bool:
        # pytest takes a bracket in a path for a parameter's: let it be in the part that leads here
        bracket = "[" in self._path
        path = os.path.relpath(self._path, session.config.invocation_params.dir) if bracket else self._path
        session.perform_collect([path])
        return True

    def pytest_runtestloop(self, session: Any) -> bool:
        self._work(session)
        return True


class QuietTerminal:
    """Stands in for the terminal reporter: it can be written to, but reports nothing by itself."""

    def __init__(self, reporter: Any) -> None:
        self._reporter = reporter

    def __getattr__(self, name: str) -> Any:
        if name.startswith("pytest_"):
            raise AttributeError(name)
        return getattr(self._reporter, name)


def start_session(brief: Record, work: Callable[[Any], None]) -> Any:
    """A pytest session like the one the user started, with only the test's file collected."""
    import pytest
    from _pytest.config import _prepareconfig

    from pytest_rlstability.beacon import enter_test_process

    config = _prepareconfig(brief["arguments"], None)
    for name, value in _QUIET_OPTIONS.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    if brief["basetemp"] is not None:
        config.option.basetemp = str(Path(brief["basetemp"]) / f"spawn-{os.getpid()}")
    if brief["worker_input"] is not None:
        config.workerinput = brief["worker_input"]  # type: ignore[attr-defined]
    config.option.rl_seed = str(brief["seed"])
    enter_test_process(config)
    config.pluginmanager.register(FreshSession(brief["path"], work))
    config._do_configure()
    reporter = config.pluginmanager.unregister(name="terminalreporter")
    if reporter is not None:
        config.pluginmanager.register(QuietTerminal(reporter), "terminalreporter")
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    config.hook.pytest_collection(session=session)
    return session


class _AsideOutput:
    """Keeps what start-up writes off the terminal: the user has seen it once, from pytest's own process."""

    def __init__(self, paths: tuple[Path, Path]) -> None:
        self._saved = [os.dup(1), os.dup(2)]
        for descriptor, path in zip((1, 2), paths, strict=True):
            file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(file, descriptor)
            os.close(file)

    def put_back(self, config: Any) -> None:
        manager = config.pluginmanager.getplugin("capturemanager")
        if manager is not None and manager._global_capturing is not None:
            manager._global_capturing.stop_capturing()
            manager._global_capturing = None
        for descriptor, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)


def main(hub: Any, token: str, serial: int) -> int:
    from pytest_rlstability.isolation.child import Child, Link
    from pytest_rlstability.isolation.coverage import start_coverage
    from pytest_rlstability.isolation.output import output_paths

    kernel.die_with_parent()
    link = Link.open(hub, token, serial)
    brief = link.wire.receive()
    if brief is None:
        return 0
    sys.path[:], sys.argv[:] = brief["sys_path"], brief["argv"]
    os.chdir(brief["invocation_directory"])
    directory = Path(brief["directory"])
    start_coverage(brief["coverage"], directory)
    aside = _AsideOutput(output_paths(directory, serial))
    if brief["locks"]:
        from pytest_rlstability.locks.patch import install

        install()

    def work(session: Any) -> None:
        aside.put_back(session.config)
        items = {item.nodeid: item for item in reversed(session.items)}
        child = Child(session, directory, seed=brief["seed"], hold=brief["hold"], finalizing=True)
        child.attach(link)
        child.work(lambda nodeid: items[str(nodeid)])

    try:
        session = start_session(brief, work)
        session.config.hook.pytest_runtestloop(session=session)
    except BaseException:
        link.wire.send({"kind": "fault", "traceback": traceback.format_exc()})
        return 70
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])))

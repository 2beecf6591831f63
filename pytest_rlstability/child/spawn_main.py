"""``python -m pytest_rlstability.child.spawn_main DIRECTORY SERIAL``: a test's process that collects its file itself.
The template forks such processes too."""

from __future__ import annotations

import os
import pkgutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_rlstability.model.messages import InternalError, PrepareInterpreter, ProtocolError
from pytest_rlstability.osinfo.descriptors import BINARY
from pytest_rlstability.osinfo.endpoint import Endpoint

# Before anything of pytest's: sys.path is not yet what the user's run had.
from pytest_rlstability.osinfo.process_control import die_with_parent

if TYPE_CHECKING:
    from pytest_rlstability.child.finalizers import Finalizers

# Options of pytest and well-known plugins that only pytest's own process acts on.
_QUIET_OPTIONS: dict[str, Any] = {
    "usepdb": False, "trace": False, "collectonly": False, "dist": "no", "numprocesses": None, "tx": [],
    "looponfail": False, "lf": False, "failedfirst": False, "newfirst": False, "stepwise": False,
    "stepwise_skip": False, "cacheclear": False, "log_file_mode": "a",
}  # fmt: skip


class FreshSession:
    """A pytest plugin: collects the one file that holds the test, and runs what pytest's process sends."""

    def __init__(self, path: str, work: Callable[[Any], None]) -> None:
        self._path = path
        self._work = work

    def pytest_collection(self, session: Any) -> bool:
        # pytest reads a bracket in a path as a parameter: keep it in the part that leads to this directory
        path = self._path
        if "[" in path:
            with suppress(ValueError):  # it is on another drive
                path = os.path.relpath(path, session.config.invocation_params.dir)
        session.perform_collect([path] if path else None)
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


def start_session(order: PrepareInterpreter, work: Callable[[Any], None]) -> Any:
    """A pytest session like the one the user started, with only the test's file collected."""
    import pytest

    from pytest_rlstability.child.unimportable import SkipUnimportable
    from pytest_rlstability.compat.pytest import configure, prepare_config
    from pytest_rlstability.model.channel import TEST_PROCESS, become_test_process

    config = prepare_config(order.arguments, [SimpleNamespace(__name__=TEST_PROCESS)])
    for name, value in _QUIET_OPTIONS.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    if order.basetemp is not None:
        config.option.basetemp = str(Path(order.basetemp) / f"spawn-{os.getpid()}")
    if order.worker_input is not None:
        config.workerinput = order.worker_input  # type: ignore[attr-defined]
    config.option.rl_seed = str(order.seed)
    become_test_process(config)
    config.pluginmanager.register(FreshSession(order.path, work))
    config.pluginmanager.register(SkipUnimportable(order.unimportable))
    configure(config)
    reporter = config.pluginmanager.unregister(name="terminalreporter")
    if reporter is not None:
        config.pluginmanager.register(QuietTerminal(reporter), "terminalreporter")
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    config.hook.pytest_collection(session=session)
    return session


class AsideOutput:
    """Keeps what start-up writes off the terminal: the user has seen it once, from pytest's own process."""

    def __init__(self, paths: tuple[Path, Path]) -> None:
        self._saved = [os.dup(1), os.dup(2)]
        for descriptor, path in zip((1, 2), paths, strict=True):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | BINARY, 0o600)
            os.dup2(file, descriptor)
            os.close(file)

    def put_back(self) -> None:
        for descriptor, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)


def main(endpoint: Endpoint, serial: int, finalizers: Finalizers | None = None) -> int:
    """Run tests; the exit code. The interpreter ends after that, unless *finalizers* end the process."""
    from pytest_rlstability.child.coverage import start_coverage
    from pytest_rlstability.child.link import Link
    from pytest_rlstability.child.output import output_paths
    from pytest_rlstability.child.runner import TestRunner
    from pytest_rlstability.compat.pytest import GlobalCapture

    die_with_parent()
    if sys.platform == "win32":
        signal.signal(signal.SIGBREAK, signal.default_int_handler)  # Ctrl-C of the user, passed on
    link = Link.open(endpoint, serial)
    order = link.messages.receive()
    if order is None:
        return 0
    if not isinstance(order, PrepareInterpreter):
        raise ProtocolError(f"a fresh interpreter does not get {type(order).__name__} first")
    sys.path[:], sys.argv[:] = order.sys_path, order.argv
    os.chdir(order.invocation_directory)
    start_coverage(order.coverage, endpoint.directory)
    aside = AsideOutput(output_paths(endpoint.directory, serial))

    def work(session: Any) -> None:
        GlobalCapture(session.config).stop()
        aside.put_back()
        items = {item.nodeid: item for item in reversed(session.items)}
        runner = TestRunner(
            session,
            endpoint.directory,
            hold=order.hold_crashes,
            finalizing=finalizers is None,
            finalizers=finalizers,
        )
        runner.attach(link)
        runner.work(lambda nodeid: items[str(nodeid)])

    try:
        for name in order.before_import:
            pkgutil.resolve_name(name)()
        session = start_session(order, work)
        session.config.hook.pytest_runtestloop(session=session)
    except BaseException:
        link.messages.send(InternalError(traceback.format_exc()))
        return 70
    return 0


if __name__ == "__main__":
    directory, serial = sys.argv[1:]
    sys.exit(main(Endpoint.load(directory), int(serial)))

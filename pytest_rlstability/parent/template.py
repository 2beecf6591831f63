"""The template: a fresh interpreter that has imported the libraries of a suite, and none of its own modules.

Test processes are forked from it where pytest's process has threads that a fork would lose. To import a library starts
no threads, as a rule; to use it does. Each test process collects its file itself, and so has the threads that the file
starts, but need not import the libraries.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from pytest_rlstability.child import spawn_main
from pytest_rlstability.child.finalizers import Finalizers
from pytest_rlstability.child.gc_freeze import freeze_until_asked
from pytest_rlstability.compat.cpython import drop_exit_callbacks
from pytest_rlstability.model.messages import StartProcess
from pytest_rlstability.osinfo.endpoint import Endpoint
from pytest_rlstability.osinfo.fork_safety import ThreadsAtStart
from pytest_rlstability.osinfo.linux import own_threads
from pytest_rlstability.parent.loop import ProcessParent, connect_parent

if sys.platform == "linux":
    from pytest_rlstability.parent.zygote import run_and_exit, use_native_threads

assert sys.platform == "linux"


def libraries_file(directory: Path) -> Path:
    """Names of modules, one in a line, in the order of their import."""
    return directory / "libraries"


def import_libraries(file: Path) -> None:
    """Import the modules that *file* lists. When packages among them start threads, this interpreter begins again
    without those."""
    threads, running = ThreadsAtStart(), len(own_threads())
    names, unfit = file.read_text().split(), set()
    for name in names:
        with suppress(Exception, SystemExit):
            import_module(name)
        if len(own_threads()) > running and threads.reason_against_fork():
            unfit.add(_package(name))
            threads = ThreadsAtStart()
        running = len(own_threads())
    if unfit:
        file.write_text("\n".join(name for name in names if _package(name) not in unfit))
        os.execv(sys.executable, sys.orig_argv)


def _package(module: str) -> str:
    return module.partition(".")[0]


class Template:
    """The parent of test processes that are forked from this one. ``serve()`` returns when the run is over."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def serve(self) -> None:
        aside = spawn_main.AsideOutput((Path(os.devnull), Path(os.devnull)))
        import_libraries(libraries_file(self._endpoint.directory))
        aside.put_back()
        drop_exit_callbacks()
        self._finalizers = Finalizers()
        gc.collect()
        gc.disable()
        freeze_until_asked()
        self._connection = connect_parent(self._endpoint)
        ProcessParent(self._connection, self._fork, self._endpoint).serve()

    def _fork(self, order: StartProcess) -> int:
        pid = os.fork()
        if pid == 0:
            run_and_exit(lambda: self._become_test(order))
        return pid

    def _become_test(self, order: StartProcess) -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._connection.close()
        gc.enable()
        if order.canary:
            use_native_threads()
        else:
            spawn_main.main(self._endpoint, order.serial, self._finalizers)


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Without the end of the interpreter: exit callbacks were dropped, and libraries complain if they are not called.
    run_and_exit(Template(Endpoint.load(*arguments)).serve)

"""Finds worker processes of a test (vector envs, data loaders) that died by a signal which nobody sent on purpose."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_rlstability.compat.cpython import started_processes
from pytest_rlstability.model.messages import WorkerDied
from pytest_rlstability.osinfo.fatal_signals import signal_name, worker_faults_path

_ended_on_purpose: set[int] = set()


def remember_ends() -> None:
    """Note the workers this process itself terminates or kills: a vec-env's ``close`` is not a crash."""
    module = sys.modules.get("multiprocessing.process")
    if module is None:
        return

    def noting(end: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(end)
        def noted(process: Any) -> None:
            _ended_on_purpose.add(process.pid)
            end(process)

        return noted

    process_class = module.BaseProcess
    process_class.terminate, process_class.kill = noting(process_class.terminate), noting(process_class.kill)


def dead_workers(directory: Path) -> list[WorkerDied]:
    """The multiprocessing children of this process that a signal ended: name, pid, signal, stack where known.

    Where multiprocessing was imported too late for ``remember_ends``, SIGTERM and SIGKILL may have been the
    test's own doing and do not count.
    """
    module = sys.modules.get("multiprocessing.process")
    noted = module is not None and hasattr(module.BaseProcess.terminate, "__wrapped__")
    deliberate = () if noted else (signal.SIGTERM, signal.SIGKILL)
    found = []
    for process, popen in started_processes():
        code = None if process.pid in _ended_on_purpose else popen.poll()
        if code is not None and code < 0 and -code not in deliberate:
            stack = _stack_of(directory, process.pid)
            found.append(WorkerDied(process.name, process.pid, signal_name(-code), stack))
    return sorted(found, key=lambda worker: worker.pid)


def _stack_of(directory: Path, pid: int) -> str:
    try:
        return worker_faults_path(directory, pid).read_text(errors="replace")
    except OSError:
        return ""

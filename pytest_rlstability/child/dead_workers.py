"""Finds worker processes of a test (vector envs, data loaders) that died by a signal which nobody sent on purpose."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess  # before any test, which may be the first to import it
from pathlib import Path
from typing import Any

from pytest_rlstability.compat.cpython import popen_of, process_starters, started_processes
from pytest_rlstability.model.messages import WorkerDied
from pytest_rlstability.osinfo.fatal_signals import signal_of_exit, worker_faults_path

_ended_on_purpose: set[tuple[int, str]] = set()
"""Workers with the signal that this process sent them. One that dies at the same moment by another one has crashed."""
_died: dict[int, tuple[str, str]] = {}
"""Name and signal of each worker that a signal has ended, by pid. Pools and executors forget them."""
_of_earlier_tests: set[int] = set()


def remember_ends() -> None:
    """Note the workers that a signal ends, and those that this process itself terminates or kills: a vec-env's
    ``close`` is not a crash."""
    process_class: Any = BaseProcess
    process_class.terminate = _noting_purpose(process_class.terminate, "SIGTERM")
    process_class.kill = _noting_purpose(process_class.kill, "SIGKILL")
    for starter in process_starters():
        starter.poll = _noting_death(starter.poll)


def _noting_purpose(end: Callable[[Any], None], signal: str) -> Callable[[Any], None]:
    @functools.wraps(end)
    def noted(process: Any) -> None:
        popen = popen_of(process)
        if popen is not None and popen.poll() is None:  # an executor ends those that are dead, too
            _ended_on_purpose.add((process.pid, signal))
        end(process)

    return noted


def _noting_death(poll: Callable[..., int | None]) -> Callable[..., int | None]:
    @functools.wraps(poll)
    def noted(popen: Any, *arguments: Any, **options: Any) -> int | None:
        code = poll(popen, *arguments, **options)
        with suppress(Exception):  # the test goes on, whatever it has done to multiprocessing
            _note_end(popen, code)
        return code

    return noted


def _note_end(popen: Any, code: int | None) -> None:
    signal = signal_of_exit(code)
    if signal and popen.pid not in _died and (popen.pid, signal) not in _ended_on_purpose:
        names = (process.name for process, started in started_processes() if started is popen)
        _died[popen.pid] = next(names, "worker"), signal


def dead_workers(directory: Path) -> list[WorkerDied]:
    """The multiprocessing children of this process that a signal ended: name, pid, signal, stack where known."""
    for _, popen in list(started_processes()):
        _note_end(popen, popen.poll())
    return [
        WorkerDied(name, pid, signal, _stack_of(directory, pid))
        for pid, (name, signal) in sorted(_died.items())
        if pid not in _of_earlier_tests
    ]


def forget_dead_workers() -> None:
    """Another test begins in this process."""
    _of_earlier_tests.update(_died)


def _stack_of(directory: Path, pid: int) -> str:
    try:
        return worker_faults_path(directory, pid).read_text(errors="replace")
    except OSError:
        return ""

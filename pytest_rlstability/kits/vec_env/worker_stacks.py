"""The Python stacks of workers that crash or are stuck, arranged before the workers start.

A worker writes its Python stacks to a file of its own, when it crashes and when asked.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

from pytest_rlstability.child.crash_handlers import follow_forks, follow_spawns
from pytest_rlstability.model.stack_dump import StackDump, parse_dump
from pytest_rlstability.model.units import KEPT_BYTES
from pytest_rlstability.model.verdict import Location
from pytest_rlstability.osinfo.fatal_signals import FATAL_SIGNALS, ask_for_stacks, signal_name, worker_faults_path
from pytest_rlstability.osinfo.linux import descriptor_path
from pytest_rlstability.osinfo.native_stacks import native_stack
from pytest_rlstability.verdicts.crash import location_in

_ASKING_SECONDS = 2.0
_directory: Path | None = None
_is_recording = False


@contextmanager
def recorded(make_directory: Callable[[], Path]) -> Iterator[None]:
    """Workers that start inside this block leave their stacks in a directory that is made once."""
    global _directory, _is_recording
    if _directory is None:  # a fork hook cannot be removed, so that a process has one hook and one directory
        _directory = make_directory()
        follow_forks(_directory, lambda: _is_recording)
        follow_spawns(_directory, lambda: _is_recording)
    _is_recording = True
    try:
        yield
    finally:
        _is_recording = False


def stack_of_dead(process: BaseProcess, exit_code: int | None) -> tuple[str, Location | None]:
    """The Python stacks a dead worker left, or the reason in parentheses why there are none; and where it was."""
    if exit_code is None or -exit_code not in FATAL_SIGNALS:
        return "(none: a process leaves one only when it crashes by itself)", None
    own = _own_file(process)
    dump = parse_dump(own.read_text(errors="replace") if own else "")
    if dump.signal == signal_name(-exit_code):
        return _shown(dump)
    return "(none was written: the worker was started before this fixture could set it up)", None


def _shown(dump: StackDump) -> tuple[str, Location | None]:
    """The stacks, and where the crashed thread was, or the main one, which faulthandler writes last."""
    thread = dump.crashed or (dump.threads[-1] if dump.threads else None)
    return dump.render(), location_in(thread.own_frames) if thread else None


def stack_of_alive(process: BaseProcess) -> tuple[str, Location | None]:
    """The same for a worker that is stuck or stopped. A stopped one is continued, to write its stacks."""
    if sys.platform == "win32":
        raise NotImplementedError
    assert process.pid is not None
    own = _own_file(process)
    if own is not None:  # any other worker would die of the signal that asks
        os.kill(process.pid, signal.SIGCONT)
        if text := ask_for_stacks(process.pid, own, seconds=_ASKING_SECONDS):
            return _shown(parse_dump(text))
    native = native_stack(process.pid, python=True)
    if native.startswith("("):
        native += "\n(pip install 'pytest-rlstability[native]' brings pystack, which needs no help of the worker)"
    return native, None


def uncaught_exception(process: BaseProcess) -> str | None:
    """The traceback that multiprocessing printed for *process*; empty if none, ``None`` if stderr cannot be read."""
    written = _stderr_text()
    if written is None:
        return None
    _, _, text = written.rpartition(f"Process {process.name}:\n")
    traceback = re.match(r"(Traceback \(most recent call last\):\n(?:.*\n)*?)(?! |Traceback)(\S.*)", text)
    return traceback[0] if traceback else ""


def _stderr_text() -> str | None:
    """The end of what this process and its workers wrote to stderr, if that is a file: pytest's or the supervisor's."""
    status = os.fstat(2)
    if not stat.S_ISREG(status.st_mode):
        return None
    if sys.platform == "win32":
        raise NotImplementedError
    start = max(0, status.st_size - KEPT_BYTES)
    try:
        content = os.pread(2, KEPT_BYTES, start)
    except OSError:  # open for writing only
        with open(descriptor_path("self", 2), "rb") as file:
            file.seek(start)
            content = file.read()
    return content.decode(errors="replace")


def _own_file(process: BaseProcess) -> Path | None:
    """The file to which a worker writes its stacks; None if it was not set up for that."""
    if _directory is None or process.pid is None:
        return None
    path = worker_faults_path(_directory, process.pid)
    return path if path.exists() else None

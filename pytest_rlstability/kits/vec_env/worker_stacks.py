"""The Python stacks of workers that crash or are stuck, arranged before the workers start.

A forked worker writes its Python stacks to a file of its own, when it crashes and when asked. A spawned one, or one of
a fork server, writes them to stderr because of ``PYTHONFAULTHANDLER``; pytest keeps stderr in a file. A fork server
that was started earlier does not see the variable.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import re
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from pytest_rlstability.compat.cpython import start_method
from pytest_rlstability.model.stack_dump import StackDump, parse_dump
from pytest_rlstability.model.units import KEPT_BYTES
from pytest_rlstability.model.verdict import Location
from pytest_rlstability.osinfo.fatal_signals import (
    FATAL_SIGNALS,
    STACKS_SIGNAL,
    ask_for_stacks,
    default_fatal_signals,
    signal_name,
)
from pytest_rlstability.osinfo.linux import descriptor_path
from pytest_rlstability.osinfo.native_stacks import native_stack
from pytest_rlstability.verdicts.crash import location_in

_ASKING_SECONDS = 2.0
_directory: Path | None = None
_hook_is_set = False


@contextmanager
def recorded(directory: Path) -> Iterator[None]:
    """Workers that start inside this block leave their stacks, the forked ones in *directory*."""
    global _directory, _hook_is_set
    if not _hook_is_set:
        os.register_at_fork(after_in_child=_prepare_forked_worker)
        _hook_is_set = True
    variable = os.environ.get("PYTHONFAULTHANDLER")
    _directory = directory
    os.environ["PYTHONFAULTHANDLER"] = "1"
    try:
        yield
    finally:
        _directory = None
        if variable is None:
            del os.environ["PYTHONFAULTHANDLER"]
        else:
            os.environ["PYTHONFAULTHANDLER"] = variable


def _prepare_forked_worker() -> None:
    """A fork hook cannot be removed: outside ``recorded()`` it does nothing."""
    if _directory is None:
        return
    with suppress(OSError):
        file = os.open(_directory / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        faulthandler.disable()  # pytest may have enabled it: then it would not set its handlers again
        default_fatal_signals()
        faulthandler.enable(file=file, all_threads=True)
        if STACKS_SIGNAL is not None:
            faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)


def stack_of_dead(process: BaseProcess, exit_code: int | None) -> tuple[str, Location | None]:
    """The Python stacks a dead worker left, or the reason in parentheses why there are none; and where it was."""
    if exit_code is None or -exit_code not in FATAL_SIGNALS:
        return "(none: a process leaves one only when it crashes by itself)", None
    written = _stderr_text()
    for text in (_own_file(process), written or ""):
        dump = parse_dump("".join(text.rpartition("Fatal Python error")[1:]))
        if dump.signal == signal_name(-exit_code):
            return _shown(dump)
    if written is None:
        return "(unknown: stderr is not kept in a file; pytest's default --capture=fd keeps it)", None
    if (start_method(process) or multiprocessing.get_start_method()) == "forkserver":
        return (
            "(none was written: the fork server was started before this fixture could set it up. Run the test with "
            "--rl-stability, which gives it a fork server of its own, or pytest with PYTHONFAULTHANDLER=1)"
        ), None
    return "(none was written: the worker was started before this fixture could set it up)", None


def _shown(dump: StackDump) -> tuple[str, Location | None]:
    """The stacks, and where the crashed thread was, or the main one, which faulthandler writes last."""
    thread = dump.crashed or (dump.threads[-1] if dump.threads else None)
    return dump.render(), location_in(thread.own_frames) if thread else None


def stack_of_alive(process: BaseProcess) -> tuple[str, Location | None]:
    """The same for a worker that is stuck or stopped. A stopped one is continued, to write its stacks."""
    text = _ask(process)
    if text:
        return _shown(parse_dump(text))
    assert process.pid is not None
    native = native_stack(process.pid)
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
    start = max(0, status.st_size - KEPT_BYTES)
    try:
        content = os.pread(2, KEPT_BYTES, start)
    except OSError:  # open for writing only
        with open(descriptor_path("self", 2), "rb") as file:
            file.seek(start)
            content = file.read()
    return content.decode(errors="replace")


def _own_file(process: BaseProcess) -> str:
    if _directory is not None:
        with suppress(OSError):
            return (_directory / str(process.pid)).read_text(errors="replace")
    return ""


def _ask(process: BaseProcess) -> str:
    """Ask for stacks only if the worker has a file of its own: any other would die of the signal."""
    if _directory is None or not (file := _directory / str(process.pid)).exists():
        return ""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGCONT)
    return ask_for_stacks(process.pid, file, seconds=_ASKING_SECONDS)

"""What a worker can still say when it crashes or is stuck, arranged before it is started.

By start method: a forked worker gets a file of its own for its Python stacks, written when it crashes and when asked.
A spawned one, or one of a fork server, is told by ``PYTHONFAULTHANDLER`` to write them to stderr, which pytest keeps in
a file. A fork server that was running before cannot be told any more.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import re
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from pytest_rlstability.evidence.native import native_stack
from pytest_rlstability.evidence.stacks import parse_dump
from pytest_rlstability.isolation.faults import STACKS_SIGNAL
from pytest_rlstability.isolation.kernel import FATAL_SIGNALS, default_fatal_signals, signal_name

_ASKING_SECONDS = 2.0
_KEPT_BYTES = 256 * 1024
_directory: Path | None = None
_hook_is_set = False


@contextmanager
def recorded(directory: Path) -> Iterator[None]:
    """While this lasts, workers that are started leave last words, the forked ones in *directory*."""
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
    """A hook cannot be taken back: outside ``recorded()`` it does nothing."""
    if _directory is None:
        return
    with suppress(OSError):
        file = os.open(_directory / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        faulthandler.disable()  # enabled already, as by pytest, it would not set its handlers again
        default_fatal_signals()
        faulthandler.enable(file=file, all_threads=True)
        if STACKS_SIGNAL is not None:
            faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)


def stack_of_dead(process: BaseProcess, exit_code: int | None) -> str:
    """The Python stacks a dead worker left, or a line in parentheses that says why there are none."""
    if exit_code is None or -exit_code not in FATAL_SIGNALS:
        return "(none: a process leaves one only when it crashes by itself)"
    written = stderr_text()
    for text in (_own_file(process), written or ""):
        dump = parse_dump("".join(text.rpartition("Fatal Python error")[1:]))
        if dump.signal == signal_name(-exit_code):
            return dump.render()
    if written is None:
        return "(unknown: stderr is not kept in a file; pytest's default --capture=fd keeps it)"
    if _start_method(process) == "forkserver":
        return (
            "(none was written: the fork server was started before this fixture could tell it to. Run the test with "
            "--rl-stability, which gives it a fork server of its own, or pytest with PYTHONFAULTHANDLER=1)"
        )
    return "(none was written: the worker was started before this fixture could tell it to)"


def stack_of_alive(process: BaseProcess) -> str:
    """The Python stacks of a worker that is stuck, or stopped; it may run on a little while it is asked."""
    text = _ask(process)
    if text:
        return parse_dump(text).render()
    assert process.pid is not None
    native = native_stack(process.pid)
    if native.startswith("("):
        return f"{native}\n(pip install 'pytest-rlstability[native]' brings pystack, which needs no help of the worker)"
    return native


def uncaught_exception(process: BaseProcess) -> str | None:
    """The traceback multiprocessing printed for *process*; ``""``: none, ``None``: its stderr cannot be read."""
    written = stderr_text()
    if written is None:
        return None
    _, _, text = written.rpartition(f"Process {process.name}:\n")
    traceback = re.match(r"(Traceback \(most recent call last\):\n(?:.*\n)*?)(?! |Traceback)(\S.*)", text)
    return traceback[0] if traceback else ""


def stderr_text() -> str | None:
    """The end of what this process and its workers wrote to stderr, if that is a file: pytest's or the supervisor's."""
    status = os.fstat(2)
    if not stat.S_ISREG(status.st_mode):
        return None
    start = max(0, status.st_size - _KEPT_BYTES)
    try:
        content = os.pread(2, _KEPT_BYTES, start)
    except OSError:  # open for writing only
        with open("/proc/self/fd/2", "rb") as file:
            file.seek(start)
            content = file.read()
    return content.decode(errors="replace")


def _own_file(process: BaseProcess) -> str:
    if _directory is not None:
        with suppress(OSError):
            return (_directory / str(process.pid)).read_text(errors="replace")
    return ""


def _ask(process: BaseProcess) -> str:
    """Only a worker with a file of its own has been told what the signal means; any other would die of it."""
    if _directory is None or STACKS_SIGNAL is None or not (_directory / str(process.pid)).exists():
        return ""
    assert process.pid is not None
    os.kill(process.pid, STACKS_SIGNAL)
    os.kill(process.pid, signal.SIGCONT)
    deadline = time.monotonic() + _ASKING_SECONDS
    text = ""
    while time.monotonic() < deadline:
        time.sleep(0.05)
        before, text = text, _own_file(process)
        if text and text == before:
            break
    return text


def _start_method(process: BaseProcess) -> str | None:
    return getattr(type(process), "_start_method", None) or multiprocessing.get_start_method()

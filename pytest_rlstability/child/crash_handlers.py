"""What a test's process does when it crashes.

faulthandler writes the Python stacks to a socket, so that pytest's process learns of the crash at once. The crashed
thread is held where it failed until its native stack has been read (see ``osinfo.fatal_signals``).
"""

from __future__ import annotations

import faulthandler
import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from os import close as close_descriptor  # bound here: a test may replace it
from os import getpid
from os import open as open_descriptor
from pathlib import Path
from typing import Any

from pytest_rlstability.compat.cpython import run_in_workers
from pytest_rlstability.osinfo.descriptors import replace_descriptor
from pytest_rlstability.osinfo.fatal_signals import (
    POSITION_SIGNAL,
    STACKS_SIGNAL,
    FatalHandlers,
    default_fatal_signals,
    hold_on_fatal_signals,
    worker_faults_path,
)
from pytest_rlstability.osinfo.process_control import allow_tracing


class CrashHandlers:
    """Has faulthandler write this process's stacks; with *hold* the crashed thread is kept for a debugger.

    The stacks go nowhere until ``write_to(descriptor)``. Everything else is prepared once, for all forks of a zygote.
    """

    def __init__(self, *, hold: bool) -> None:
        self._descriptor = open_descriptor(os.devnull, os.O_WRONLY)
        self._suspended: FatalHandlers | None = None
        self._enable, self._disable = faulthandler.enable, faulthandler.disable
        # Its handlers are installed once, on top of what is there: pytest's own use must be undone first.
        faulthandler.disable()
        if hold:
            hold_on_fatal_signals()
        _write_stacks_to(self._descriptor, c_stack=hold)
        if hold:
            self._respect_other_owners()

    def suspend(self) -> None:
        """In a process that others are forked from: a crash of its own must end it, and not hold it unseen."""
        self._suspended = FatalHandlers()

    def write_to(self, descriptor: int) -> None:
        """Send the stacks to *descriptor*, and let a debugger attach."""
        replace_descriptor(self._descriptor, descriptor)
        if self._suspended is not None:
            self._suspended.put_back()
        allow_tracing()

    def stop_holding(self) -> None:
        """Let a crash kill the process again, with its stacks written as before. The interpreter is about to end, and
        faulthandler with it: nobody would notice a process that is held after that."""
        self._release()
        _write_stacks_to(self._descriptor)

    def undo(self) -> bool:
        """Give faulthandler back; False if somebody has taken it over meanwhile, or turned it off."""
        ours = faulthandler.enable is not self._enable
        if ours:
            self._release()
        if sys.platform != "win32":
            for number in filter(None, (STACKS_SIGNAL, POSITION_SIGNAL)):
                faulthandler.unregister(number)
        close_descriptor(self._descriptor)
        return ours

    def _release(self) -> None:
        faulthandler.enable, faulthandler.disable = self._enable, self._disable
        faulthandler.disable()
        default_fatal_signals()

    def _respect_other_owners(self) -> None:
        """Stop holding when the test takes faulthandler over or turns it off: nobody would notice a held crash then."""

        def releasing(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                self._release()
                return original(*args, **kwargs)

            return call

        faulthandler.enable = releasing(faulthandler.enable)
        faulthandler.disable = releasing(faulthandler.disable)


def _write_stacks_to(descriptor: int, *, c_stack: bool = False) -> None:
    """On a fatal signal, and when asked to. The first *c_stack* of a process allocates memory. After a crash inside
    malloc it may never come to its end, so that it is for processes that somebody will kill."""
    faulthandler.enable(file=descriptor, all_threads=True, **_options(c_stack=c_stack))
    if sys.platform != "win32" and STACKS_SIGNAL is not None and POSITION_SIGNAL is not None:
        faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True)
        faulthandler.register(POSITION_SIGNAL, file=descriptor, all_threads=False)


def _options(*, c_stack: bool) -> dict[str, Any]:
    return {"c_stack": c_stack} if sys.version_info >= (3, 14) else {}


def follow_forks(directory: Path, cut_off: Callable[[], bool]) -> None:
    """A process that the test forks must not send in its name: it loses the connection and writes its stacks to a file.

    *cut_off* says whether it was a test that forked. It is not held: whoever waits for it must see it die.
    """

    def in_child() -> None:
        if cut_off():
            write_worker_stacks(directory)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)


def follow_spawns(directory: Path, wanted: Callable[[], bool] = lambda: True) -> None:
    """Workers that multiprocessing starts in interpreters of their own write their stacks too. They may not be able to
    import this package."""
    signals = [pair for pair in ((STACKS_SIGNAL, True), (POSITION_SIGNAL, False)) if pair[0] is not None]
    run_in_workers(
        _WORKER_CODE.format(directory=str(directory), signals=signals, options=_options(c_stack=False)), wanted
    )


_WORKER_CODE = """
import faulthandler, os
try:
    path = os.path.join({directory!r}, f"{{os.getpid()}}.fault")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    faulthandler.enable(descriptor, all_threads=True, **{options})
    for number, all_threads in {signals}:
        faulthandler.register(number, descriptor, all_threads)
except OSError:
    pass
"""


def write_worker_stacks(directory: Path) -> None:
    """Have this process, a worker of a test or script, write its stacks to its own file in *directory*."""
    # Off first: faulthandler installs its handlers only when it believes that they are not there.
    faulthandler.disable()
    default_fatal_signals()
    path = worker_faults_path(directory, getpid())
    with suppress(OSError):
        _write_stacks_to(open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))

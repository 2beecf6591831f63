"""Whether this process may be forked: the threads of it that would be missing in the copy."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import suppress

from pytest_rlstability.compat.cpython import module_of_thread, numba_has_threads
from pytest_rlstability.osinfo import linux

_OPENMP = ("libgomp", "libomp", "libiomp")
_PAUSE_HARD = 2


class ThreadsAtStart:
    """The threads of this process before the user's modules were imported. They are no reason against a fork: what
    starts them, pytest-xdist for one, knows that tests may fork."""

    def __init__(self) -> None:
        self._native = frozenset(linux.threads_of(os.getpid()))
        self._python = frozenset(threading.enumerate())

    def reason_against_fork(self) -> str:
        """Names the threads that were started since and would be missing; empty when there are none.

        Threads of OpenMP are ended here and come back when they are needed. Those of OpenBLAS have no name of their
        own, and OpenBLAS starts them again after a fork.
        """
        pause_openmp()
        python = [thread for thread in threading.enumerate() if thread not in self._python and not _is_plugins(thread)]
        own = linux.stat(os.getpid())
        since = {*linux.threads_of(os.getpid())} - self._native
        stats = [stat for thread in since if (stat := linux.stat(os.getpid(), thread)) is not None]
        names = {stat.name for stat in stats} - {own.name if own is not None else ""}
        if python or names:
            listed = ", ".join(sorted({thread.name for thread in python} | names)[:3])
            return f"threads run since modules were imported, and would be missing in a fork: {listed}"
        return "numba has used its thread pool" if numba_has_threads() else ""


def _is_plugins(thread: threading.Thread) -> bool:
    """Whether a plugin of pytest runs the thread, for the process that reports."""
    return module_of_thread(thread).startswith(("pytest_", "_pytest", "xdist", "execnet"))


def pause_openmp() -> None:
    """Have every OpenMP library that is loaded end its threads, so that a forked process does not wait for them."""
    paths = {region.name for region in linux.mappings(having=b"omp")}
    for path in paths:
        if not os.path.basename(path).startswith(_OPENMP):
            continue
        with suppress(OSError, AttributeError):
            ctypes.CDLL(path).omp_pause_resource_all(_PAUSE_HARD)

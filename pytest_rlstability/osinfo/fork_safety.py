"""Whether this process may be forked: the threads of it that would be missing in the copy."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import threading
import time
from collections import defaultdict
from contextlib import suppress

from pytest_rlstability.compat.cpython import module_of_thread, numba_has_threads
from pytest_rlstability.osinfo import linux

_OPENMP = ("libgomp", "libomp", "libiomp")
_PAUSE_HARD = 2
_RESTARTED = re.compile("openblas|opencv|/cv2")
"""Libraries that start their threads again after a fork."""
_RUNTIME = re.compile(
    r"/(libc|libc\+\+|libstdc\+\+|libpthread|ld-linux[^/]*|ld|libpython[^/]*|python[^/]*)[.\d-]*(so|$)"
)
_INSTALLED = re.compile(r"/(?:site|dist)-packages/([^/]+?)(?:\.libs)?/")
_STACK = 1 << 13
_MOST_LISTED = 3
_SETTLING = 0.2
"""How long a thread that nothing is known of may take to end or to show its library, in seconds."""


class ThreadsAtStart:
    """The threads of this process before the user's modules were imported. They are no reason against a fork: what
    starts them, pytest-xdist for one, knows that tests may fork."""

    def __init__(self) -> None:
        self._native = frozenset(linux.threads_of(os.getpid()))
        self._python = frozenset(threading.enumerate())
        self._running = len(self._native)
        self._modules: list[str] = []

    def note_import(self, module: str) -> None:
        """*module* was imported just now: whether that started threads."""
        running = len(linux.own_threads())
        if running > self._running:
            self._modules.append(module)
        self._running = running

    def reason_against_fork(self) -> str:
        """Names the threads that were started since and would be missing; empty when there are none.

        Threads of OpenMP are ended here and come back when they are needed. Those of OpenBLAS and OpenCV are started
        again after a fork.
        """
        pause_openmp()
        python = [thread for thread in threading.enumerate() if thread not in self._python and not _is_plugins(thread)]
        names = defaultdict[str, list[str]](list)
        for thread in python:
            names[module_of_thread(thread)].append(thread.name)
        # Python does not notice that the number of its main thread is another one in a fork.
        known = self._native | {os.getpid()} | {thread.native_id for thread in threading.enumerate()}
        for number in sorted(set(linux.threads_of(os.getpid())) - known):
            if (name := _missed_name(number)) is not None:
                names[_package(_library_of(number))].append(name)
        if names:
            listed = "; ".join(_listed(library, found) for library, found in [*names.items()][:_MOST_LISTED])
            modules = " and ".join(self._modules[:_MOST_LISTED])
            since = f"{modules} was imported" if len(self._modules) == 1 else f"{modules or 'modules'} were imported"
            return f"threads run since {since}, and would be missing in a fork: {listed}"
        return "numba has used its thread pool" if numba_has_threads() else ""


def _is_plugins(thread: threading.Thread) -> bool:
    """Whether a plugin of pytest runs the thread, for the process that reports."""
    return module_of_thread(thread).startswith(("pytest_", "_pytest", "xdist", "execnet"))


def _missed_name(thread: int) -> str | None:
    """The name of a native thread that a forked process would miss; None for one that it would not."""
    deadline = time.monotonic() + _SETTLING
    # A thread that runs shows no stack, and one that is about to end has none of its library's code on it.
    while not (library := _library_of(thread)) and time.monotonic() < deadline:
        if linux.stat(os.getpid(), thread) is None:
            return None
        time.sleep(_SETTLING / 20)
    stat = linux.stat(os.getpid(), thread)
    return None if stat is None or _RESTARTED.search(library) else stat.name


def _library_of(thread: int) -> str:
    """The file of the native library whose code a thread of this process runs; empty if unknown.

    The first address on its stack that is in a library, and not in one that every thread uses, tells.
    """
    top = linux.stack_pointer(os.getpid(), thread)
    stack = next((region for region in linux.mappings() if top and region.start <= top < region.end), None)
    if top is None or stack is None:
        return ""
    memory = linux.read_memory(os.getpid(), top, min(_STACK, stack.end - top)) or b""
    code = [region for region in linux.mappings(having=b" r-xp ") if not _RUNTIME.search(region.name)]
    for (address,) in struct.iter_unpack("P", memory[: len(memory) // 8 * 8]):
        for region in code:
            if region.start <= address < region.end and "/" in region.name:
                return region.name
    return ""


def _package(library: str) -> str:
    package = _INSTALLED.search(library)
    return package[1] if package else os.path.basename(library)


def _listed(library: str, names: list[str]) -> str:
    """``polars (polars-0, polars-1, polars-2 and 3 more)``."""
    different = [*dict.fromkeys(names)]
    more = f" and {len(different) - _MOST_LISTED} more" if len(different) > _MOST_LISTED else ""
    listed = f"{', '.join(different[:_MOST_LISTED])}{more}"
    return f"{library} ({listed})" if library else listed


def pause_openmp() -> None:
    """Have every OpenMP library that is loaded end its threads, so that a forked process does not wait for them."""
    paths = {region.name for region in linux.mappings(having=b"omp")}
    for path in paths:
        if not os.path.basename(path).startswith(_OPENMP):
            continue
        with suppress(OSError, AttributeError):
            ctypes.CDLL(path).omp_pause_resource_all(_PAUSE_HARD)

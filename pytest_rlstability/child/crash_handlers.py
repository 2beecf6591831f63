"""Last words: what a test's process leaves of itself when it crashes.

faulthandler writes the Python stacks to a socket, so that the supervisor learns of the crash at once, and the
crashed thread is held where it failed until its native stack has been read (see ``kernel``).
"""

from __future__ import annotations

import faulthandler
import functools
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_rlstability.isolation import kernel
from pytest_rlstability.isolation.descriptors import replace_descriptor

# A real-time signal, because the ordinary user signals belong to the code under test.
STACKS_SIGNAL: int | None = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else None
"""Sent by the supervisor to have a live process write its Python stacks; needs no GIL."""


class Faults:
    """This process's last words; with *hold* the crash site is kept for a debugger.

    They go nowhere until ``speak_to(descriptor)``: everything else is prepared once, for all forks of a zygote.
    """

    def __init__(self, *, hold: bool) -> None:
        self._descriptor = os.open(os.devnull, os.O_WRONLY)
        self._enable, self._disable = faulthandler.enable, faulthandler.disable
        # Its handlers are installed once, on top of what is there: pytest's own use must be undone first.
        faulthandler.disable()
        if hold:
            kernel.hold_on_fatal_signals()
        _write_stacks_to(self._descriptor)
        if hold:
            self._respect_other_owners()

    def speak_to(self, descriptor: int) -> None:
        """Have somebody listen, and allowed to look."""
        replace_descriptor(self._descriptor, descriptor)
        kernel.allow_tracing()

    def stop_holding(self) -> None:
        """Let a crash kill again, with its stacks written as before: the interpreter is about to end, and with it
        faulthandler, and nobody would hear of a process held after that."""
        self._release()
        _write_stacks_to(self._descriptor)

    def _release(self) -> None:
        faulthandler.enable, faulthandler.disable = self._enable, self._disable
        faulthandler.disable()
        kernel.default_fatal_signals()

    def _respect_other_owners(self) -> None:
        """When the test takes faulthandler over, or turns it off, nobody would hear of a held crash either."""

        def releasing(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                self._release()
                return original(*args, **kwargs)

            return call

        faulthandler.enable = releasing(faulthandler.enable)
        faulthandler.disable = releasing(faulthandler.disable)


def _write_stacks_to(descriptor: int) -> None:
    """On a fatal signal, and when asked to."""
    faulthandler.enable(file=descriptor, all_threads=True)
    if STACKS_SIGNAL is not None:
        faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True)


def worker_faults_path(directory: Path, pid: int) -> Path:
    """Where a forked worker of a test writes its stacks when it crashes."""
    return directory / f"{pid}.fault"


def follow_forks(directory: Path, cut_off: Callable[[], bool]) -> None:
    """A process the test forks must not speak in its name: it loses the wire, and gets a fault file of its own.

    *cut_off* says whether it was a test that forked. It is not held: whoever waits for it must see it die.
    """

    def in_child() -> None:
        if not cut_off():
            return
        # Off first: faulthandler installs its handlers only when it believes that they are not there.
        faulthandler.disable()
        kernel.default_fatal_signals()
        path = worker_faults_path(directory, os.getpid())
        with suppress(OSError):
            _write_stacks_to(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)


def announce_threads(tell: Callable[[threading.Thread], None]) -> None:
    """Call *tell* with every thread as it starts: a dump names none of them."""
    original = threading.Thread._set_native_id  # type: ignore[attr-defined]

    def announced(thread: threading.Thread) -> None:
        original(thread)
        with suppress(Exception):  # a fault of ours must not end the user's thread before it has begun
            tell(thread)

    threading.Thread._set_native_id = announced  # type: ignore[attr-defined]

"""SIGTERM while a soak is waited for: CI's way to say that the time is up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within it SIGTERM ends the run as Ctrl-C does: what is known so far is reported, and no process stays.

    Only around a wait in which nothing is forked: a copy of this process must not inherit the handler. One that
    somebody else has set is left alone.
    """
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, frame: object) -> None:
    pytest.exit("SIGTERM")

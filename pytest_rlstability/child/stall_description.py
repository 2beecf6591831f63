"""Describes a stalled test from inside: what only Python code in its process can see.

pytest's process asks when it has decided to end the test and has read its stacks: nothing that happens here can change
how the test ends. The main thread answers if its wait can be interrupted by a signal.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from signal import signal  # bound here: a test may replace it

from pytest_rlstability.child.dead_workers import dead_workers
from pytest_rlstability.child.waiting_tasks import waiting_tasks
from pytest_rlstability.model.messages import Message, StallDescribed
from pytest_rlstability.osinfo.fatal_signals import DESCRIBE_SIGNAL


def describe_when_asked(directory: Path, send: Callable[[Message], object]) -> None:
    """Send the dead workers, then the tasks that wait, whenever pytest's process asks."""

    def answer(*_: object) -> None:
        with suppress(Exception):  # the test may have replaced anything
            for worker in dead_workers(directory):
                send(worker)
        tasks = []
        with suppress(Exception):
            tasks = waiting_tasks()
        send(StallDescribed(tasks))

    if DESCRIBE_SIGNAL is not None:
        signal(DESCRIBE_SIGNAL, answer)

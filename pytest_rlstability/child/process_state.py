"""What a test changed in its process for the tests that come after it: evidence when the process dies later."""

from __future__ import annotations

from contextlib import suppress
from os import fsdecode, getcwd  # bound here, as all below: a test may replace them
from signal import Signals

from pytest_rlstability.compat.cpython import exit_callbacks, raw_environment, signal_handlers
from pytest_rlstability.model.units import format_size

_PYTESTS = {b"PYTEST_CURRENT_TEST", "PYTEST_CURRENT_TEST"}
_MUCH_MEMORY = 50 << 20
"""Bytes that a test must keep to be worth a line."""


class ProcessState:
    """``changes(memory)`` after each test: what it changed, one line each, for a process that uses *memory* bytes."""

    def __init__(self) -> None:
        self._handlers = signal_handlers()
        self._environment = dict(raw_environment())
        self._directory = _directory()
        self._callbacks = exit_callbacks()
        self._memory = 0

    def changes(self, memory: int) -> list[str]:
        lines: list[str] = []
        if (handlers := signal_handlers()) != self._handlers:
            changed = [number for number, handler in handlers.items() if handler != self._handlers[number]]
            lines += [f"signal handler of {Signals(number).name}" for number in changed]
            self._handlers = handlers
        if (environment := raw_environment()) != self._environment:
            names = {name for name, _ in environment.items() ^ self._environment.items()} - _PYTESTS
            lines += [f"environment variable {fsdecode(name)}" for name in sorted(names)]
            self._environment = dict(environment)
        if (directory := _directory()) != self._directory:
            lines.append(f"working directory {directory or '(removed)'}")
            self._directory = directory
        if (callbacks := exit_callbacks()) > self._callbacks:
            lines.append(f"exit callbacks: {callbacks - self._callbacks}")
        if self._memory and memory - self._memory >= _MUCH_MEMORY:
            lines.append(f"{format_size(memory - self._memory)} of memory")
        self._callbacks, self._memory = callbacks, memory
        return lines


def _directory() -> str:
    with suppress(OSError):
        return getcwd()
    return ""

"""Captures a test's output at descriptor level, in files that outlive its process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import open as open_descriptor  # bound here: a test may replace them
from pathlib import Path
from typing import BinaryIO

import pytest

from pytest_rlstability.compat.pytest import GlobalCapture
from pytest_rlstability.model.units import KEPT_BYTES
from pytest_rlstability.osinfo.descriptors import BINARY, replace_descriptor

_KEPT = KEPT_BYTES - 100
"""So that the text with its note need not be shortened again."""
_WRITE = os.O_RDWR | os.O_CREAT | os.O_TRUNC | BINARY


def output_paths(directory: Path, serial: int) -> tuple[Path, Path]:
    """Where the process with this serial number keeps its standard output and standard error."""
    return directory / f"{serial}.out", directory / f"{serial}.err"


class Output:
    """This process's own capture; ``keep_in(paths)`` has it written to files that outlive a crash.

    The capture inherited from pytest is closed without being read: pytest shows what it holds. The new one is made
    once, for all forks of a zygote; each fork puts its own files under the inherited descriptors.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._descriptors = GlobalCapture(config).restart(_shortened)

    def keep_in(self, paths: tuple[Path, Path]) -> None:
        for descriptor, path in zip(self._descriptors, paths, strict=False):
            replace_descriptor(descriptor, open_descriptor(path, _WRITE, 0o600))


@contextmanager
def capturing(config: pytest.Config) -> Iterator[None]:
    """Capture what is written outside pytest's own phases, unless the test has closed what it would go to."""
    capture = GlobalCapture(config)
    closed = (OSError, ValueError)
    resumed = False
    with suppress(*closed):
        capture.resume()
        resumed = True
    try:
        yield
    finally:
        if resumed:
            with suppress(*closed):
                capture.suspend()


def read_output(path: Path) -> str:
    """What is in an output file, shortened in the middle, whatever bytes it holds."""
    try:
        with open(path, "rb") as file:
            return _shortened(file)
    except OSError:
        return ""


def _shortened(file: BinaryIO) -> str:
    """A test may have written more than fits into memory."""
    size = file.seek(0, 2)
    file.seek(0)
    if size <= 2 * _KEPT:
        return file.read().decode(errors="replace")
    head = file.read(_KEPT)
    file.seek(-_KEPT, 2)
    tail = file.read()
    left_out = f"\n[... {size - 2 * _KEPT:,} bytes left out by rl-stability ...]\n"
    return head.decode(errors="replace") + left_out + tail.decode(errors="replace")

"""A test's output, captured at descriptor level into files that outlive its process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from _pytest.capture import FDCaptureBase

from pytest_rlstability.isolation.descriptors import replace_descriptor

KEPT_BYTES = 256 * 1024
"""How much of the head and how much of the tail of one captured stream is kept in a report."""


def output_paths(directory: Path, serial: int) -> tuple[Path, Path]:
    """Where the process with this serial number keeps its standard output and standard error."""
    return directory / f"{serial}.out", directory / f"{serial}.err"


class Output:
    """A capture of this process's own; ``keep_in(paths)`` has it written to files that outlive a crash.

    The capture inherited from pytest is closed without being read: what it holds is pytest's to show. The new one is
    made once, for all forks of a zygote; each puts files of its own under the descriptors of the inherited ones.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._descriptors: list[int] = []
        manager = config.pluginmanager.getplugin("capturemanager")
        if manager is None:
            return
        if manager._global_capturing is not None:
            manager._global_capturing.stop_capturing()
            manager._global_capturing = None
        manager.start_global_capturing()
        manager.suspend_global_capture()
        streams = (getattr(manager._global_capturing, name) for name in ("out", "err"))
        self._descriptors = [stream.tmpfile.fileno() for stream in streams if isinstance(stream, FDCaptureBase)]

    def keep_in(self, paths: tuple[Path, Path]) -> None:
        for descriptor, path in zip(self._descriptors, paths, strict=False):
            replace_descriptor(descriptor, os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))


@contextmanager
def capturing(config: pytest.Config) -> Iterator[None]:
    """Capture what is written outside pytest's own phases, unless the test has closed what it would go to."""
    manager = config.pluginmanager.getplugin("capturemanager")
    closed = (OSError, ValueError)
    try:
        if manager is not None:
            manager.resume_global_capture()
    except closed:
        manager = None
    try:
        yield
    finally:
        if manager is not None:
            with suppress(*closed):
                manager.suspend_global_capture()


def shorten(text: str) -> str:
    """*text* with its middle left out when it is too long to carry around."""
    if len(text) <= 2 * KEPT_BYTES:
        return text
    left_out = len(text) - 2 * KEPT_BYTES
    return f"{text[:KEPT_BYTES]}\n[... {left_out:,} characters left out by rl-stability ...]\n{text[-KEPT_BYTES:]}"


def read_output(path: Path) -> str:
    """What is in an output file, shortened in the middle, whatever bytes it holds."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            if size <= 2 * KEPT_BYTES:
                return file.read().decode(errors="replace")
            head = file.read(KEPT_BYTES)
            file.seek(-KEPT_BYTES, 2)
            tail = file.read()
    except OSError:
        return ""
    left_out = f"\n[... {size - 2 * KEPT_BYTES:,} bytes left out by rl-stability ...]\n"
    return head.decode(errors="replace") + left_out + tail.decode(errors="replace")

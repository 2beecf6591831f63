"""A test's output, captured at descriptor level into files that outlive its process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import _pytest.capture
import pytest

KEPT_BYTES = 256 * 1024
"""How much of the head and how much of the tail of one captured stream is kept in a report."""


def output_paths(directory: Path, serial: int) -> tuple[Path, Path]:
    """Where the process with this serial number keeps its standard output and standard error."""
    return directory / f"{serial}.out", directory / f"{serial}.err"


def restart_capture(config: pytest.Config, directory: Path, serial: int) -> None:
    """Give this process a capture of its own, in the files ``output_paths`` names.

    The one inherited over a fork shares its file offset with every sibling. It is closed without being read:
    what it holds is pytest's to show.
    """
    manager = config.pluginmanager.getplugin("capturemanager")
    if manager is None:
        return
    inherited = manager._global_capturing
    if inherited is not None:
        inherited.stop_capturing()
        manager._global_capturing = None
    with _temporary_files_at(output_paths(directory, serial)):
        manager.start_global_capturing()
    manager.suspend_global_capture()


@contextmanager
def _temporary_files_at(paths: tuple[Path, Path]) -> Iterator[None]:
    """Have pytest's descriptor capture open these files, first for stdout then for stderr, instead of nameless
    ones: a nameless file is gone with the process that crashed."""
    waiting = iter(paths)

    def named_file(*_: object, **__: object) -> IO[Any]:
        return open(next(waiting), "w+b", buffering=0)

    module: Any = _pytest.capture
    original, module.TemporaryFile = module.TemporaryFile, named_file
    try:
        yield
    finally:
        module.TemporaryFile = original


@contextmanager
def capturing(config: pytest.Config) -> Iterator[None]:
    """Capture what is written outside pytest's own phases."""
    manager = config.pluginmanager.getplugin("capturemanager")
    if manager is None:
        yield
        return
    manager.resume_global_capture()
    try:
        yield
    finally:
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

"""Starts a Python process beside the test's, and kills it with everything that it started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_rlstability.osinfo.process_control import kill_tree

PACKAGE_PARENT = str(Path(__file__).parents[2])
"""Where an interpreter finds this package."""


def module_command(module: str, *arguments: str, isolated: bool = False) -> list[str]:
    """A command that calls ``main(arguments)`` of *module*.

    It can import what this process can, and nothing that merely lies in the working directory. An *isolated* one can
    import only this package and what is installed, and ignores the ``PYTHON...`` variables.
    """
    path = [PACKAGE_PARENT] if isolated else [entry for entry in sys.path if entry]
    # The module's name comes first, because lists of processes show the beginning.
    program = f"{module!r}; import sys; sys.path[:0] = {path!r}; from {module} import main; main(sys.argv[1:])"
    return [sys.executable, "-I" if isolated else "-P", "-c", program, *arguments]


class HelperProcess(subprocess.Popen[bytes]):
    """A new interpreter: unlike a fork, it cannot be hung by the threads and locks of this process. In *environment* a
    value of None removes the variable; *others* are arguments of ``subprocess.Popen``."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str | None] | None = None, **others: Any
    ) -> None:
        merged: dict[str, str | None] = {**os.environ, **(environment or {})}
        variables = {name: value for name, value in merged.items() if value is not None}
        super().__init__(command, env=variables, **{"stdin": subprocess.DEVNULL, **others})

    def ended_within(self, seconds: float) -> bool:
        """Whether it ends by itself within so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(seconds)
        return self.returncode is not None

    def end(self) -> None:
        """Kill it and its descendants, and reap it; harmless when it has ended."""
        if self.poll() is None:
            kill_tree(self.pid)
        self.wait()

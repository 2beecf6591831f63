"""Which tests of a baseline a run should have had: only those can have vanished."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

_NARROWING = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf", "last_failed", "stepwise", "pyargs")
"""Options that leave tests out which are still there."""


def is_narrowed(config: pytest.Config) -> bool:
    """Whether the command line leaves out tests that are still there: ``-k``, ``-m``, ``--lf`` and the like."""
    return any(config.getoption(name, None) for name in _NARROWING)


def covered(arguments: Sequence[str], here: Path, root: Path, tests: Iterable[str]) -> list[str]:
    """Those of *tests* that pytest's *arguments*, given in the directory *here*, ask for.

    ``covered(["tests", "test_a.py::TestB"], here, root, saved)``: what lies in ``tests``, and what ``TestB`` has.
    """
    asked = [(here / path, rest) for path, _, rest in (argument.partition("::") for argument in arguments)]
    found = []
    for test in tests:
        file, _, name = test.partition("::")
        path = root / file
        if any(_asks_for(folder, rest, path, name) for folder, rest in asked):
            found.append(test)
    return found


def _asks_for(folder: Path, rest: str, path: Path, name: str) -> bool:
    if not rest:
        return path == folder or folder in path.parents
    return path == folder and (name == rest or name.startswith((f"{rest}::", f"{rest}[")))

"""Which tests of a baseline a run asked for: only those can have vanished."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

_NARROWING = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf", "last_failed", "stepwise", "pyargs")
"""Options that leave out existing tests."""


def is_narrowed(config: pytest.Config) -> bool:
    """Whether the command line leaves out existing tests: ``-k``, ``-m``, ``--lf`` and the like."""
    return any(config.getoption(name, None) for name in _NARROWING)


def covered(arguments: Sequence[str], here: Path, root: Path, tests: Iterable[str]) -> list[str]:
    """Those of *tests* that pytest's *arguments*, given in the directory *here*, ask for.

    ``covered(["tests", "test_a.py::TestB"], here, root, saved)``: the tests in ``tests``, and those of ``TestB``.
    """
    asked = [(here / path, rest) for path, _, rest in (argument.partition("::") for argument in arguments)]
    return [test for test in tests if any(_asks_for(place, rest, root, test) for place, rest in asked)]


def _asks_for(place: Path, rest: str, root: Path, test: str) -> bool:
    file, _, name = test.partition("::")
    path = root / file
    if not rest:
        return path == place or place in path.parents
    return path == place and (name == rest or name.startswith((f"{rest}::", f"{rest}[")))

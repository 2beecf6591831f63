"""Which libraries a test imports itself: the zygote can import them beforehand in the next run."""

from __future__ import annotations

import sys

from pytest_rlstability.model.user_code import Origin, origin
from pytest_rlstability.osinfo.fork_safety import ThreadsAtStart


class Imports:
    """``of_test()`` after a test with a process of its own."""

    def __init__(self) -> None:
        self._before = frozenset(sys.modules)
        self._threads = ThreadsAtStart()

    def of_test(self) -> list[str]:
        """The libraries that were imported since, none of them the user's own; empty if threads were started too."""
        new = sys.modules.keys() - self._before
        tops = sorted(name for name in new if name.rpartition(".")[0] not in new)
        found = [name for name in tops if _is_library(name)]
        return [] if found and self._threads.reason_against_fork() else found


def _is_library(name: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(file, str) and origin(file) is Origin.LIBRARY

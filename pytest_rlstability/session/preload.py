"""What the zygote imports before it forks: libraries that several tests with a process of their own import themselves.

The list is learnt: pytest's cache keeps what each test imported in earlier runs. ``rl_preload`` adds to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

_KEY = "rlstability/imports"
_WORTH_IT = 2
"""How many tests of a run must import a library."""


class Preload:
    """``modules`` before the run, ``note`` after each test, ``save`` at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._cache = getattr(config, "cache", None)
        self._given: list[str] = config.getini("rl_preload")
        self._known: dict[str, list[str]] = {} if self._cache is None else dict(self._cache.get(_KEY, {}))
        self._changed = False

    def modules(self, items: list[pytest.Item], has_own_process: Callable[[pytest.Item], bool]) -> list[str]:
        """The libraries to import before the tests *items* run."""
        wanted = Counter(name for item in items if has_own_process(item) for name in self._known.get(item.nodeid, ()))
        return [*self._given, *(name for name, tests in wanted.items() if tests >= _WORTH_IT)]

    def note(self, nodeid: str, imported: tuple[str, ...]) -> None:
        """A library that was there beforehand is not imported again, so what is known is only added to."""
        known = self._known.get(nodeid, [])
        if new := [name for name in imported if name not in known]:
            self._known[nodeid] = [*known, *new]
            self._changed = True

    def save(self) -> None:
        if self._cache is not None and self._changed:
            self._cache.set(_KEY, self._known)

"""Remembers wide fixtures whose set-up ends its process, so that not every test that needs one dies of it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from pytest_rlstability.compat.pytest import wide_fixtures
from pytest_rlstability.model.run import Run
from pytest_rlstability.model.verdict import Verdict

_DEATHS = 2
"""One may be chance."""

_Key = tuple[object, str]
"""The function of a fixture, and its parameter."""


class FatalFixtures:
    """``note`` the deaths, ``verdict_on`` the tests that would follow."""

    def __init__(self) -> None:
        self._deaths: Counter[_Key] = Counter()
        self._verdicts: dict[_Key, Verdict] = {}

    def note(self, item: pytest.Item, run: Run, verdict: Verdict, *, dies_again: bool) -> None:
        """*item* died as *verdict* says; *dies_again*: and so it did in another process."""
        key = dict(_keys(item)).get(run.seen.fixture)
        if key is not None:
            self._deaths[key] += 2 if dies_again else 1
            self._verdicts[key] = verdict

    def verdict_on(self, item: pytest.Item) -> Verdict | None:
        """Why *item* cannot run, if it needs a fixture that ends its process."""
        for name, key in _keys(item) if self._deaths else ():
            if self._deaths[key] >= _DEATHS:
                verdict = self._verdicts[key]
                how = f"not run: fixture {name!r} has ended {self._deaths[key]} processes"
                return Verdict(verdict.word, how, (("", verdict.title), *verdict.sections[:1]), verdict.facts)
        return None


def _keys(item: pytest.Item) -> Iterator[tuple[str, _Key]]:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    for name, function in wide_fixtures(item).items():
        yield name, (function, repr(parameters.get(name)))

"""Files that crashed or hung when pytest's process imported them: no other process of the run imports them again."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from pytest_rlstability.compat.pytest import collected_nothing

UNIMPORTABLE = pytest.StashKey[tuple[str, ...]]()
"""Their node ids, in the stash of pytest's configuration."""


class SkipUnimportable:
    """A plugin of a process that collects for itself."""

    def __init__(self, nodeids: Collection[str]) -> None:
        self._nodeids = nodeids

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        return collected_nothing(collector) if (collector.nodeid or ".") in self._nodeids else None

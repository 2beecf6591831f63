"""Whether the import of conftests and test modules is guarded, and by what."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_rlstability.compat.cpython import module_of_thread
from pytest_rlstability.config.options import Settings
from pytest_rlstability.model.channel import TEST_PROCESS, is_test_process
from pytest_rlstability.session.collection.failed_imports import FailedImports
from pytest_rlstability.session.collection.worker_imports import known_failures, record_of
from pytest_rlstability.session.pools import reason_against_fork


def _can_guard(config: pytest.Config, settings: Settings) -> bool:
    """Whether this is the process that imports test modules for the user, and a copy of it can be used."""
    # With pytest-xdist, workers import the modules, and their controller none.
    with_xdist = any(module_of_thread(thread).startswith("execnet") for thread in threading.enumerate())
    elsewhere = with_xdist and record_of(config) is None
    is_test = is_test_process(config) or config.pluginmanager.hasplugin(TEST_PROCESS)
    debugged = bool(settings.remark) or "pydevd" in sys.modules
    return (
        not (elsewhere or debugged or is_test)
        and threading.current_thread() is threading.main_thread()
        and not reason_against_fork(config)
    )


@contextmanager
def guarded_imports(config: pytest.Config, settings: Settings) -> Iterator[None]:
    """Conftests or modules are imported, guarded where that is possible."""
    failures, silent = known_failures(config)
    if failures:
        config.pluginmanager.register(FailedImports(config, failures, silent))
    if not _can_guard(config, settings):
        yield
        return
    if sys.platform == "linux":
        from pytest_rlstability.session.collection.guard import CollectionGuard

        guard = CollectionGuard(config, settings)
        guard.start()
        config.pluginmanager.register(guard, "rlstability-collection-guard")
        try:
            yield
        finally:
            config.pluginmanager.unregister(guard)
            guard.stop()

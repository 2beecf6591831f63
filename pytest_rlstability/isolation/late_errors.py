"""What threads and finalizers raise after a test's tear-down. Pytest would warn of it in the course of the session."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
from _pytest import threadexception, unraisableexception
from _pytest.warnings import catch_warnings_for_item


def tell_late_errors(item: pytest.Item) -> None:
    """Warn of what was raised since pytest last looked, as of *item*'s doing."""
    config = item.config
    with catch_warnings_for_item(config, item.ihook, "runtest", item):
        if threadexception.thread_exceptions in config.stash:
            _warn(item, threadexception.collect_thread_exception)
        if unraisableexception.unraisable_exceptions in config.stash:
            _warn(item, unraisableexception.collect_unraisable)


def _warn(item: pytest.Item, collect: Callable[[pytest.Config], None]) -> None:
    try:
        collect(item.config)
    except Exception as error:  # warnings are errors here, and it is too late for one: the test has passed
        message = warnings.WarningMessage(error, type(error), str(item.path), 1)  # type: ignore[arg-type]
        item.ihook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": message, "when": "runtest", "nodeid": item.nodeid, "location": None}
        )

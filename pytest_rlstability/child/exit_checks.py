"""Runs the shutdown steps of a test's process while the test is still supervised."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from warnings import WarningMessage  # bound here: a test may replace them

import pytest

from pytest_rlstability.child.gc_freeze import collect
from pytest_rlstability.child.output import capturing
from pytest_rlstability.compat.cpython import join_threads, run_exit_callbacks
from pytest_rlstability.compat.pytest import drop_instance, late_error_warners, recording_warnings


def drop_references(item: pytest.Item) -> None:
    """Drop what pytest keeps of a finished test: frames of its exception, its instance, its fixtures."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        with suppress(AttributeError):
            delattr(sys, name)
    drop_instance(item)


def check_exit(item: pytest.Item, look: Callable[[], None], *, finalizing: bool) -> None:
    """Do what interpreter shutdown does, in its order: threads, exit callbacks, garbage.

    Garbage is collected first as well, while the threads that it may belong to still live: that is where a corrupted
    heap usually shows. Then *look* may see what the test left. With *finalizing* the interpreter does the rest.
    """
    with capturing(item.config):
        collect()
        look()
        if not finalizing:
            with suppress(Exception):  # a test may have replaced what threading itself uses
                join_threads()
            run_exit_callbacks()
            collect()
        _warn_of_late_errors(item)


def _warn_of_late_errors(item: pytest.Item) -> None:
    """Warn of what threads and finalizers raised after tear-down; pytest would do so later in the session."""
    with recording_warnings(item):
        for warn in late_error_warners(item.config):
            _warn(item, warn)


def _warn(item: pytest.Item, warn: Callable[[pytest.Config], None]) -> None:
    try:
        warn(item.config)
    except Exception as error:  # warnings are errors here, but the test has passed
        message = WarningMessage(error, type(error), str(item.path), 1)  # type: ignore[arg-type]
        item.ihook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": message, "when": "runtest", "nodeid": item.nodeid, "location": None}
        )

"""Whether the next test may already run while pytest's plugins are told of the last one, which takes as long as an
empty test does."""

from __future__ import annotations

from collections.abc import Sequence

import pluggy
import pytest

from pytest_rlstability.facts import Record

_HOOKS = (
    "pytest_runtest_protocol",
    "pytest_runtest_logstart",
    "pytest_runtest_logreport",
    "pytest_runtest_logfinish",
)
_ONLY_LISTEN = ("_pytest", "pytest_rlstability", "xdist", "pytest_timeout", "pytest_rerunfailures", "pytest_cov")
"""Packages whose part in these hooks changes nothing that the next test could meet."""


def may_run_ahead(config: pytest.Config) -> bool:
    """Whether nobody would notice: no output of tests goes straight to the terminal, and no plugin of the user's own
    does something between two tests."""
    if _is_seen_at_once(config):
        return False
    heard_by = {part.function.__module__.partition(".")[0] for name in _HOOKS for part in _parts(config, name)}
    return heard_by.issubset(_ONLY_LISTEN)


def _is_seen_at_once(config: pytest.Config) -> bool:
    """Whether a test writes to the terminal itself. A plugin that was switched off has no options."""
    option = config.option
    if getattr(option, "capture", "no") == "no" or getattr(option, "setupshow", False):
        return True
    logs = config.pluginmanager.hasplugin("logging-plugin")
    return logs and (option.log_cli_level is not None or bool(config.getini("log_cli")))


def all_passed(reports: Sequence[Record]) -> bool:
    """Whether these are the reports of a test that nobody stops the session for."""
    return bool(reports) and all(report["outcome"] == "passed" for report in reports)


def _parts(config: pytest.Config, name: str) -> Sequence[pluggy.HookImpl]:
    caller: pluggy.HookCaller = getattr(config.hook, name)
    return caller.get_hookimpls()

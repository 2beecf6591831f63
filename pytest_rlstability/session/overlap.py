"""Whether the next test may already run while pytest's plugins handle the reports of the last one, which takes as long
as an empty test does."""

from __future__ import annotations

from collections.abc import Sequence

import pluggy
import pytest

_HOOKS = (
    "pytest_runtest_protocol",
    "pytest_runtest_logstart",
    "pytest_runtest_logreport",
    "pytest_runtest_logfinish",
)
_ONLY_LISTEN = (
    "_pytest",
    "pytest_rlstability",
    "xdist",
    "pytest_timeout",
    "pytest_rerunfailures",
    "pytest_cov",
    "syrupy",
)
"""Packages whose part in these hooks changes nothing that the next test could notice."""


def may_overlap(config: pytest.Config) -> bool:
    """Whether nobody would notice: tests do not write straight to the terminal, and no plugin of the user's own does
    something between two tests."""
    if _writes_to_terminal(config):
        return False
    packages = {part.function.__module__.partition(".")[0] for name in _HOOKS for part in _parts(config, name)}
    return packages.issubset(_ONLY_LISTEN)


def known_order(session: pytest.Session) -> Sequence[pytest.Item] | None:
    """The order in which pytest will ask for tests. An xdist worker learns it one test in advance, and a test that is
    there twice has no one place in it: then it is None."""
    is_worker = hasattr(session.config, "workerinput")
    return None if is_worker or len(set(session.items)) < len(session.items) else session.items


def _writes_to_terminal(config: pytest.Config) -> bool:
    """Whether tests write to the terminal themselves. A plugin that was switched off has no options."""
    option = config.option
    if getattr(option, "capture", "no") in ("no", "tee-sys") or getattr(option, "setupshow", False):
        return True
    logs = config.pluginmanager.hasplugin("logging-plugin")
    return logs and (option.log_cli_level is not None or bool(config.getini("log_cli")))


def _parts(config: pytest.Config, name: str) -> Sequence[pluggy.HookImpl]:
    caller: pluggy.HookCaller = getattr(config.hook, name)
    return caller.get_hookimpls()

"""Every pytest hook of the plugin, and no logic. Heavy modules are imported where they are first needed."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlstability import markers, options
from pytest_rlstability.beacon import is_test_process

if TYPE_CHECKING:
    from pytest_rlstability.isolation.engine import Engine

pytest_plugins: list[str] = [
    "pytest_rlstability.fixtures.progress",
    "pytest_rlstability.fixtures.laps",
    "pytest_rlstability.fixtures.probe",
    "pytest_rlstability.fixtures.locks",
    "pytest_rlstability.fixtures.proxy",
    "pytest_rlstability.fixtures.vec_env",
    "pytest_rlstability.fixtures.pyboy",
    "pytest_rlstability.fixtures.box2d",
    "pytest_rlstability.fixtures.model",
]

_engine = pytest.StashKey["Engine | None"]()


def _engine_of(config: pytest.Config) -> Engine | None:
    """The engine that runs this process's tests; a test's own process may have been forked from one that has it."""
    return None if is_test_process(config) else config.stash[_engine]


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    for line in markers.marker_lines():
        config.addinivalue_line("markers", line)
    config.stash[_engine] = None
    if options.settings_of(config).enabled and not is_test_process(config):
        from pytest_rlstability.reports.desk import Desk

        config.pluginmanager.register(Desk(config), "rlstability-desk")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["rl_seed"] = options.settings_of(node.config).seed
    if (desk := node.config.pluginmanager.getplugin("rlstability-desk")) is not None:
        from pytest_rlstability.reports.worker_line import open_at_controller

        open_at_controller(node, desk.hear_worker)


def pytest_report_header(config: pytest.Config) -> str | None:
    from pytest_rlstability.reports.terminal import header

    return header(options.settings_of(config))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if errors := markers.marker_errors(items):
        raise pytest.UsageError("\n".join(errors))
    if not options.settings_of(config).soak:
        markers.skip_soaks(items)


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> str | None:
    from pytest_rlstability.reports.terminal import unchecked_line

    return unchecked_line(items, options.settings_of(config))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    if not options.settings_of(session.config).enabled:
        return (yield)
    from pytest_rlstability.isolation.engine import engine_for

    engine = session.config.stash[_engine] = engine_for(session)
    try:
        return (yield)
    finally:
        session.config.stash[_engine] = None
        if engine is not None:
            engine.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    engine = _engine_of(item.config)
    return True if engine is not None and engine.run(item, nextitem) else None


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    from pytest_rlstability.isolation.timeouts import is_kept_outside

    engine = _engine_of(item.config)
    return is_kept_outside(item, settings, isolated=engine is not None and engine.isolates(item)) or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None:
        from pytest_rlstability.reports.verdict_report import show_raised

        show_raised(report, item, call.excinfo.value)
    return report

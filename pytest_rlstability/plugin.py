"""The hooks of pytest's own process, without logic. Heavy modules are imported where they are first needed."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlstability import hookspecs, kits
from pytest_rlstability.compat.pytest import leave_assertions
from pytest_rlstability.config import markers, options
from pytest_rlstability.model.channel import is_test_process

if TYPE_CHECKING:
    from pytest_rlstability.leaks.known_leaks import KnownLeak
    from pytest_rlstability.leaks.signals.protocol import Signal
    from pytest_rlstability.model.run import Run
    from pytest_rlstability.model.verdict import Verdict
    from pytest_rlstability.session.engine import Engine
    from pytest_rlstability.session.watchdogs import KillCondition, Observer, WatchContext

pytest_plugins: list[str] = [
    "pytest_rlstability.child.progress_fixtures",
    "pytest_rlstability.leaks.plugin",
    "pytest_rlstability.reports.plugin",
    "pytest_rlstability.diagnose.plugin",
    *kits.PLUGINS,
]

_engine = pytest.StashKey["Engine | None"]()


def _engine_of(config: pytest.Config) -> Engine | None:
    """The engine that runs this process's tests; a test's own process may have been forked from one that has it."""
    return None if is_test_process(config) else config.stash[_engine]


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    leave_assertions(pluginmanager, "pytest_rlstability")
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    settings = options.early_settings(early_config)
    if not settings.enabled:
        return (yield)
    from pytest_rlstability.session.collection.guarded_imports import guarded_imports
    from pytest_rlstability.session.engine import bind_early

    bind_early(early_config)
    with guarded_imports(early_config, settings):
        return (yield)


def pytest_configure(config: pytest.Config) -> None:
    for line in markers.marker_lines():
        config.addinivalue_line("markers", line)
    config.stash[_engine] = None
    if options.settings_of(config).enabled and not is_test_process(config):
        from pytest_rlstability.session.event_bus import EventBus

        config.pluginmanager.register(EventBus(config), "rlstability-event-bus")
        if config.pluginmanager.hasplugin("xdist"):
            from pytest_rlstability.session.collection.worker_imports import WorkerImports
            from pytest_rlstability.session.xdist_channel import StoppedWorkers

            config.pluginmanager.register(WorkerImports())
            config.pluginmanager.register(StoppedWorkers())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["rl_seed"] = options.settings_of(node.config).seed
    if (bus := node.config.pluginmanager.getplugin("rlstability-event-bus")) is not None:
        from pytest_rlstability.session.xdist_channel import open_at_controller

        open_at_controller(node, bus.handle)


def pytest_report_header(config: pytest.Config) -> str | None:
    from pytest_rlstability.session.terminal.run_lines import header

    return header(options.settings_of(config))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    if isinstance(collector, pytest.File) and options.settings_of(collector.config).enabled:
        from pytest_rlstability.session.pools import threads_at_start

        threads_at_start(collector.config).note_import(collector.nodeid)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    settings = options.settings_of(session.config)
    if not settings.enabled:
        return (yield)
    from pytest_rlstability.session.collection.guarded_imports import guarded_imports

    with guarded_imports(session.config, settings):
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def check_signals(names: Collection[str]) -> None:
        from pytest_rlstability.leaks.signals.registry import signals_of

        signals_of(config).expand(names)

    if errors := markers.marker_errors(items, check_signals):
        raise pytest.UsageError("\n".join(errors))
    if not options.settings_of(config).soak:
        markers.skip_soaks(items)


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> str | None:
    from pytest_rlstability.session.terminal.run_lines import unchecked_line

    return unchecked_line(items, options.settings_of(config))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    if not options.settings_of(session.config).enabled:
        return (yield)
    from pytest_rlstability.session.engine import engine_for

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
    from pytest_rlstability.session.watchdogs.timeouts import is_kept_outside

    engine = _engine_of(item.config)
    return is_kept_outside(item, settings, isolated=engine is not None and engine.isolates(item)) or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    raised = None if call.excinfo is None else call.excinfo.value
    if raised is not None and is_test_process(item.config):
        from pytest_rlstability.child.verdict_report import hide_own_frames

        hide_own_frames()
    report = yield
    if raised is not None and (is_test_process(item.config) or type(raised).__name__ == "VerdictFailure"):
        from pytest_rlstability.child.verdict_report import show_raised

        show_raised(report, item, raised)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_rlstability_kill_conditions(item: pytest.Item, context: WatchContext) -> list[KillCondition]:
    from pytest_rlstability.session.watchdogs.shipped import shipped_kill_conditions

    return shipped_kill_conditions(item, context)


@pytest.hookimpl(tryfirst=True)
def pytest_rlstability_observers(item: pytest.Item, context: WatchContext) -> list[Observer]:
    from pytest_rlstability.session.watchdogs.shipped import shipped_observers

    return shipped_observers(item, context)


@pytest.hookimpl(trylast=True)
def pytest_rlstability_judge(run: Run) -> Verdict | None:
    from pytest_rlstability.verdicts import judge

    return judge(run)


@pytest.hookimpl(tryfirst=True)
def pytest_rlstability_signals() -> list[type[Signal]]:
    from pytest_rlstability.leaks.signals.registry import shipped_signals

    return shipped_signals()


def pytest_rlstability_known_leaks() -> list[KnownLeak]:
    from pytest_rlstability.leaks.known_leaks import shipped_known_leaks

    return shipped_known_leaks()

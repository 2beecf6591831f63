"""What is private of pytest and pluggy. Imported only where pytest is: see ``cpython`` for what must be cheap.

Seen in pytest 8.4 to 9.2 (subtests: 9.0 to 9.2; 8.4 has none) and in pluggy 1.7.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from _pytest import threadexception, unraisableexception
from _pytest._code.code import ExceptionChainRepr, ReprEntryNative, ReprFileLocation, ReprTraceback
from _pytest.assertion.rewrite import AssertionRewritingHook
from _pytest.capture import CaptureIO, FDCaptureBase
from _pytest.config import _prepareconfig
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.fixtures import FixtureFunctionDefinition
from _pytest.junitxml import xml_key
from _pytest.runner import runtestprotocol
from _pytest.skipping import Xfail, evaluate_xfail_marks
from _pytest.warnings import catch_warnings_for_item

# Running tests


def prepare_config(arguments: list[str], plugins: Sequence[object] = ()) -> pytest.Config:
    """The configuration of a pytest that was started with *arguments* and *plugins*, before plugins are configured.
    Without it the backend ``spawn`` does not run."""
    return _prepareconfig(arguments, plugins)


def configure(config: pytest.Config) -> None:
    """Call ``pytest_configure``, of plugins that are registered later too. Without it ``spawn`` does not run."""
    config._do_configure()


def run_protocol(item: pytest.Item, next_item: pytest.Item | None) -> list[pytest.TestReport]:
    """Set *item* up, call it and tear it down as far as *next_item* allows; its reports, which are not logged. Without
    it leak tests that do not lap themselves do not run."""
    return runtestprotocol(item, log=False, nextitem=next_item)


def tear_down(session: pytest.Session, next_item: pytest.Item | pytest.Collector | None) -> None:
    """Tear down what *next_item* does not need; with None, everything. Without it no test's process ends cleanly."""
    session._setupstate.teardown_exact(next_item)  # type: ignore[arg-type]


def is_anything_set_up(session: pytest.Session) -> bool:
    """Whether a test of this process has set something up that is not torn down. Without it tests that run in pytest's
    own process do not mix with others."""
    return bool(session._setupstate.stack)


def _fixtures(item: pytest.Item) -> dict[str, Any]:
    information: Any = getattr(item, "_fixtureinfo", None)
    found: dict[str, Any] = getattr(information, "name2fixturedefs", {})
    return {name: found[name][-1] for name in getattr(item, "fixturenames", ()) if found.get(name)}


def is_fixture(value: object) -> bool:
    """Whether *value* is what the ``fixture`` decorator makes. Without it a plugin that keeps data in a fixture is not
    noticed."""
    return isinstance(value, FixtureFunctionDefinition)


def fixture_functions(item: pytest.Item) -> dict[str, Any]:
    """The fixtures of *item* with the function of each. Without it tests that use a plugin which keeps its data in
    pytest's own process run elsewhere."""
    return {name: definition.func for name, definition in _fixtures(item).items()}


def wide_fixtures(item: pytest.Item) -> dict[str, Any]:
    """The fixtures of *item* that outlive it, in the order of their set-up, with the function of each. Without it
    marked tests do not share wide fixtures."""
    return {name: definition.func for name, definition in _fixtures(item).items() if definition.scope != "function"}


def set_up_wide_fixtures(item: pytest.Item) -> None:
    """Set up what stands above *item*, and its wide fixtures, but not *item*. Without it marked tests do not share wide
    fixtures."""
    test: Any = item
    item.session._setupstate.setup(test.parent)
    if not test._request:
        test._initrequest()
    for name in wide_fixtures(item):
        test._request.getfixturevalue(name)


def finalizer_lists(item: pytest.Item) -> list[list[Any]]:
    """The lists in which the fixtures and collectors that *item* uses keep what is to be called at their tear-down.
    Without them leak tests that do not lap themselves do not run."""
    information: Any = getattr(item, "_fixtureinfo", None)  # a unittest or doctest item of other plugins has none
    definitions = [one for several in getattr(information, "name2fixturedefs", {}).values() for one in several]
    of_collectors = [finalizers for finalizers, _ in item.session._setupstate.stack.values()]
    return [*(one._finalizers for one in definitions), *of_collectors]


def report_sections(item: pytest.Item) -> list[tuple[str, str, str]]:
    """The list of what *item* has written so far, as ``(phase, title, text)``; its next report shows it. Without it
    leak tests that do not lap themselves do not run."""
    return item._report_sections


def drop_instance(item: pytest.Item) -> None:
    """Drop the object whose method the test is. Without it the exit check does not finalize that object."""
    if isinstance(item, pytest.Function):
        item.obj = item._instance = None


def expected_failure(item: pytest.Item) -> Xfail | None:
    """The ``xfail`` mark that applies to *item*: ``reason`` and ``raises``. Without it no crash is reported."""
    return evaluate_xfail_marks(item)


def is_rewritten(module: object) -> bool:
    """Whether pytest has rewritten the assertions of *module*, or would have. Without it the backend ``template`` does
    not run."""
    return isinstance(getattr(module, "__loader__", None), AssertionRewritingHook)


def leave_assertions(manager: pytest.PytestPluginManager, package: str) -> None:
    """Import the modules of *package* as Python does. pytest rewrites the assertions of every plugin, at every start
    where it may not write files. Without it a start takes longer."""
    hook: Any = manager.rewrite_hook
    if isinstance(hook, AssertionRewritingHook):
        hook._must_rewrite.discard(package)
        hook._marked_for_rewrite_cache.clear()


# Output


class GlobalCapture:
    """What pytest captures of a whole process. Where capturing is switched off, nothing here does anything. Without it
    no test runs in a process of its own."""

    def __init__(self, config: pytest.Config) -> None:
        self._manager: Any = config.pluginmanager.getplugin("capturemanager")

    def stop(self) -> None:
        """Give the streams back, and drop what was captured."""
        if self._manager is not None and self._manager._global_capturing is not None:
            self._manager._global_capturing.stop_capturing()
            self._manager._global_capturing = None

    def restart(self, read: Callable[[BinaryIO], str]) -> list[int]:
        """Capture into new files, from ``resume()`` on, and have them read by *read*; their descriptors, stdout's
        first, unless it is memory."""
        if self._manager is None:
            return []
        self.stop()
        self._manager.start_global_capturing()
        self.suspend()
        for file in self._files():
            file.__class__ = type("CaptureFile", (type(file),), {"read": lambda own, size=-1: read(own.buffer)})
        return self.descriptors()

    def descriptors(self) -> list[int]:
        """Those of the files that are captured into, stdout's first, unless it is memory."""
        return [file.fileno() for file in self._files()]

    def _files(self) -> list[Any]:
        capturing = None if self._manager is None else self._manager._global_capturing
        streams = (getattr(capturing, name, None) for name in ("out", "err"))
        return [stream.tmpfile for stream in streams if isinstance(stream, FDCaptureBase)]

    def resume(self) -> None:
        if self._manager is not None:
            self._manager.resume_global_capture()

    def suspend(self) -> None:
        if self._manager is not None:
            self._manager.suspend_global_capture()


def captured_bytes(stream: object) -> io.BytesIO | None:
    """The memory behind *stream*, if pytest has put it in the place of a real one. Without it what ``capsys`` keeps
    counts as a leak."""
    buffer = getattr(stream, "buffer", None) if isinstance(stream, CaptureIO) else None
    return buffer if isinstance(buffer, io.BytesIO) else None


def crash_output(config: pytest.Config) -> int:
    """The descriptor that pytest has faulthandler write to. Without it a crash after collection is not shown."""
    return config.stash.get(fault_handler_stderr_fd_key, 2)


# Reports and warnings


def text_repr(text: str, path: str, line: int, title: str) -> ExceptionChainRepr:
    """A report's ``longrepr`` that shows *text*, and *title* where there is room for one line. Without it no verdict
    is shown. A plain string would not do: pytest takes the one line of the summary from ``reprcrash``."""
    entries = ReprTraceback([ReprEntryNative([text])], extraline=None, style="native")
    return ExceptionChainRepr([(entries, ReprFileLocation(path, line, title), None)])


class _ShownOtherwise(ExceptionChainRepr):
    def __init__(self, whole: ExceptionChainRepr, lines: Sequence[tuple[str, dict[str, bool]]]) -> None:
        super().__init__(whole.chain)
        self._whole = whole
        self._lines = lines

    def __str__(self) -> str:
        return str(self._whole)

    def toterminal(self, tw: Any) -> None:
        for text, markup in self._lines:
            tw.line(text, **markup)


def show_otherwise(longrepr: Any, lines: Sequence[tuple[str, dict[str, bool]]]) -> Any:
    """*longrepr*, if ``text_repr`` made it, with *lines* in the terminal, each with a markup such as ``{"red": True}``.
    JUnit and ``str()`` have its text. Without it every failure repeats the versions, and nothing in it has a colour."""
    return _ShownOtherwise(longrepr, lines) if isinstance(longrepr, ExceptionChainRepr) else longrepr


def collect_error(collector: pytest.Collector, longrepr: Any) -> pytest.CollectReport:
    """The report of a collector that could not be collected. Without it a crash at import is not reported."""
    return pytest.CollectReport(_key(collector), "failed", longrepr, None)


def begin_live_log(config: pytest.Config) -> None:
    """A test begins. Without it the live log of the next test of a process continues the line of pytest's terminal."""
    plugin: Any = config.pluginmanager.getplugin("logging-plugin")
    if plugin is not None:
        plugin.pytest_runtest_logstart()


def collected_nothing(collector: pytest.Collector) -> pytest.CollectReport:
    """The report of a collector that has nothing to collect. Without it an error is reported by every worker."""
    return pytest.CollectReport(_key(collector), "passed", None, [])


def remove_from_hook(hook: Any, plugin: object) -> None:
    """Take the implementation of *plugin* out of one hook, and leave its others. Without it no test runs in a process
    of its own."""
    hook._remove_plugin(plugin)


def recording_warnings(item: pytest.Item) -> AbstractContextManager[None]:
    """Record the warnings of a block as those of *item*, by its filters. Without it no exit check runs."""
    return catch_warnings_for_item(item.config, item.ihook, "runtest", item)


def late_error_warners(config: pytest.Config) -> list[Callable[[pytest.Config], None]]:
    """Functions that warn of what threads and finalizers have raised since pytest last looked. Without them no exit
    check runs."""
    warners: list[Callable[[pytest.Config], None]] = []
    if threadexception.thread_exceptions in config.stash:
        warners.append(threadexception.collect_thread_exception)
    if unraisableexception.unraisable_exceptions in config.stash:
        warners.append(unraisableexception.collect_unraisable)
    return warners


class JunitLog:
    """The log that ``--junitxml`` writes; if it is not given, nothing here does anything. Without it no test runs in a
    process of its own."""

    def __init__(self, config: pytest.Config) -> None:
        self._log = config.stash.get(xml_key, None)

    def take(self) -> tuple[list[tuple[str, str]], dict[str, Any]]:
        """Properties of the suite and attributes of the test, which the log loses."""
        if self._log is None:
            return [], {}
        properties = list(self._log.global_properties)
        attributes = {name: value for case in self._log.node_reporters.values() for name, value in case.attrs.items()}
        self._log.global_properties.clear()
        self._log.node_reporters.clear()
        return properties, attributes

    def add(self, item: pytest.Item, properties: list[tuple[str, str]], attributes: dict[str, Any]) -> None:
        """Write what ``take()`` returned in another process."""
        if self._log is not None:
            for name, value in properties:
                self._log.add_global_property(name, value)
            self._log.node_reporter(_key(item)).attrs.update(attributes)

    def describe_error(self, report: pytest.CollectReport, title: str, properties: list[tuple[str, object]]) -> None:
        """Give the error that the log has for *report* a message and properties. Without it the message is "collection
        failure"."""
        if self._log is not None:
            case = self._log.node_reporter(report)
            for error in case.nodes:
                error.set("message", title)
            for name, value in properties:
                case.add_property(name, str(value))


def _key(item: pytest.Item | pytest.Collector) -> Any:
    """By what pytest files a test: ``Item.id`` in 9.2, the node id before."""
    return getattr(item, "id", item.nodeid)


# Subtests

_SUBTEST = "_subtest.context"


def keep_subtest_arguments(data: dict[str, Any], report: Any) -> None:
    """Have *data*, the serialized *report*, hold a subtest's arguments as they are; pytest makes text of them. Without
    it they are shown in quotes."""
    if _SUBTEST in data:
        data[_SUBTEST]["kwargs"] = dict(report.context.kwargs)


def subtest_arguments(data: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments in a serialized report, if it is of a subtest. See ``keep_subtest_arguments``."""
    return data[_SUBTEST]["kwargs"] if _SUBTEST in data else None


def restore_subtest(item: pytest.Item, report: Any, arguments: dict[str, Any]) -> None:
    """Give *report*, of a subtest of *item*, its arguments back, and count its failure as pytest does. Without it a
    test does not fail with its subtests."""
    from _pytest import subtests

    object.__setattr__(report.context, "kwargs", arguments)  # a new one would make text of them again
    key: Any = getattr(subtests, "failed_subtests_key", None)
    # Those of the fixture count, those of unittest do not.
    if report.failed and key in item.config.stash and "subtests" in getattr(item, "fixturenames", ()):
        item.config.stash[key][_key(item)] += 1


# Files


def base_temp(config: pytest.Config) -> Path | None:
    """The directory that ``tmp_path`` is made in, which exists from now on; None where that plugin is switched off.
    Without it two processes may use one directory."""
    factory: Any = getattr(config, "_tmp_path_factory", None)
    return None if factory is None else factory.getbasetemp()

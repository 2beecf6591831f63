"""Each private part of pytest and pluggy that is touched, and what it is expected to do."""

from __future__ import annotations

import gc
import io
import os
import sys
import threading
import warnings
import weakref
from pathlib import Path
from xml.etree import ElementTree

import pluggy
import pytest
from _pytest._io import TerminalWriter

from pytest_rlstability.compat import pytest as compat

MODULE_FIXTURE = """
    import pytest

    events = []

    @pytest.fixture(scope="module")
    def wide():
        yield
        events.append("module torn down")

    @pytest.fixture
    def narrow(wide):
        yield
        events.append("test torn down")

    def test_one(narrow):
        assert 1

    def test_two():
        assert 2
"""


def test_configure(pytester: pytest.Pytester) -> None:
    script = pytester.makepyfile(
        script="""
        from pytest_rlstability.compat.pytest import configure, prepare_config

        class Plugin:
            def pytest_configure(self, config):
                print("configured", config.option.keyword)

        config = prepare_config(["-k", "word", "-p", "no:cacheprovider"])
        config.pluginmanager.register(Plugin())
        print("prepared")
        configure(config)
        config.pluginmanager.register(Plugin())
        """
    )
    result = pytester.runpython(script)
    result.stdout.fnmatch_lines(["prepared", "configured word", "configured word"], consecutive=True)


def test_run_protocol(pytester: pytest.Pytester) -> None:
    item = pytester.getitem("def test_it(): assert 0", "test_it")
    item.config.pluginmanager.register(logged := Logged())
    reports = compat.run_protocol(item, None)
    phases = [(report.when, report.outcome) for report in reports]
    assert phases == [("setup", "passed"), ("call", "failed"), ("teardown", "passed")]
    assert not logged.reports


class Logged:
    def __init__(self) -> None:
        self.reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)


def test_tear_down(pytester: pytest.Pytester) -> None:
    one, two = pytester.getitems(MODULE_FIXTURE)
    events = one.module.events  # type: ignore[attr-defined]
    compat.run_protocol(one, two)
    assert events == ["test torn down"]
    assert compat.is_anything_set_up(one.session)
    compat.tear_down(one.session, None)
    assert events == ["test torn down", "module torn down"]
    assert not compat.is_anything_set_up(one.session)


def test_fixtures_of_an_item(pytester: pytest.Pytester) -> None:
    """``is_fixture`` and ``fixture_functions``."""
    one, two = pytester.getitems(MODULE_FIXTURE)
    assert {"wide", "narrow"} <= compat.fixture_functions(one).keys()
    assert "wide" not in compat.fixture_functions(two)
    module = one.module  # type: ignore[attr-defined]
    assert compat.is_fixture(module.wide)
    assert not compat.is_fixture(module.test_one)
    assert compat.fixture_functions(one)["narrow"].__module__ == module.__name__


def test_wide_fixtures_of_an_item(pytester: pytest.Pytester) -> None:
    """``wide_fixtures`` and ``set_up_wide_fixtures``."""
    one, two = pytester.getitems(MODULE_FIXTURE)
    assert {"wide", "narrow"} & {*compat.wide_fixtures(one)} == {"wide"}
    assert "wide" not in compat.wide_fixtures(two)
    compat.set_up_wide_fixtures(one)
    compat.tear_down(one.session, one.parent)
    assert one.module.events == []  # type: ignore[attr-defined]
    compat.tear_down(one.session, None)
    assert one.module.events == ["module torn down"]  # type: ignore[attr-defined]


def test_finalizer_lists(pytester: pytest.Pytester) -> None:
    one, two = pytester.getitems(MODULE_FIXTURE)
    compat.run_protocol(one, two)
    lists = compat.finalizer_lists(one)
    before = [len(kept) for kept in lists]
    compat.run_protocol(one, two)
    grown = [(kept, length) for kept, length in zip(lists, before, strict=True) if len(kept) > length]
    assert grown, "pytest keeps nothing of a finished lap any more: leaks/repeat.py need not drop it"
    for kept, length in grown:
        del kept[length:]
    compat.tear_down(one.session, None)
    assert one.module.events[-1] == "module torn down"  # type: ignore[attr-defined]


def test_leave_assertions(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(left="assert True", other="assert True")
    pytester.syspathinsert()
    manager = pytester.parseconfig().pluginmanager
    manager.rewrite_hook.mark_rewrite("left", "other")
    compat.leave_assertions(manager, "left")
    assert manager.rewrite_hook.find_spec("left") is None
    assert manager.rewrite_hook.find_spec("other") is not None


def test_report_sections(pytester: pytest.Pytester) -> None:
    item = pytester.getitem("def test_it(): pass", "test_it")
    item.add_report_section("call", "stdout", "of an earlier lap")
    assert compat.report_sections(item) == [("call", "stdout", "of an earlier lap")]
    compat.report_sections(item)[:] = []
    assert [report.sections for report in compat.run_protocol(item, None)] == [[], [], []]


def test_drop_instance(pytester: pytest.Pytester) -> None:
    (item,) = pytester.getitems("class TestIt:\n    def test_it(self): pass")
    assert isinstance(item, pytest.Function)
    instance = weakref.ref(item.instance)
    assert instance() is not None
    compat.drop_instance(item)
    gc.collect()
    assert instance() is None


def test_expected_failure(pytester: pytest.Pytester) -> None:
    expected, other = pytester.getitems(
        """
        import pytest

        @pytest.mark.xfail(raises=ValueError, reason="not yet")
        def test_expected(): pass

        @pytest.mark.xfail(False, reason="not here")
        def test_other(): pass
        """
    )
    found = compat.expected_failure(expected)
    assert found is not None
    assert (found.reason, found.raises) == ("not yet", ValueError)
    assert compat.expected_failure(other) is None


CAPTURING = """
    import os
    from pytest_rlstability.compat.pytest import GlobalCapture

    def pytest_runtestloop(session):
        capture = GlobalCapture(session.config)
        files = capture.restart(lambda file: f"{file.seek(0, 2)} bytes")
        os.write(1, b"suspended\\n")
        capture.resume()
        os.write(1, b"resumed\\n")
        capture.suspend()
        kept = [os.pread(file, 100, 0) for file in files]
        shown = session.config.pluginmanager.getplugin("capturemanager").read_global_capture().out
        capture.stop()
        print("stopped", kept, shown)
        return True
"""


def test_global_capture(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CAPTURING)
    captured = pytester.runpytest_subprocess()
    captured.stdout.fnmatch_lines(["suspended", "stopped [[]b'resumed\\n', b''] 8 bytes"])
    captured.stdout.no_fnmatch_line("resumed")
    not_captured = pytester.runpytest_subprocess("-s")
    not_captured.stdout.fnmatch_lines(["suspended", "resumed", "stopped []*"])


def test_crash_output(pytestconfig: pytest.Config) -> None:
    assert os.fstat(compat.crash_output(pytestconfig))


def test_captured_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    print("kept")
    buffer = compat.captured_bytes(sys.stdout)
    assert buffer is not None
    assert buffer.getvalue() == b"kept\n"
    assert compat.captured_bytes(io.TextIOWrapper(io.BytesIO())) is None


def test_text_repr(pytester: pytest.Pytester) -> None:
    """The one line of the summary is the title, also of a report that came from another process."""
    item = pytester.getitem("def test_it(): pass", "test_it")
    report = compat.run_protocol(item, None)[1]
    report.outcome, report.longrepr = "failed", compat.text_repr("all\nof it", "test_it.py", 7, "CRASH: title")
    hook = item.config.hook
    data = hook.pytest_report_to_serializable(config=item.config, report=report)
    for shown in (report, hook.pytest_report_from_serializable(config=item.config, data=data)):
        assert shown.longrepr.reprcrash.message == "CRASH: title"
        assert shown.longrepr.reprcrash.lineno == 7
        assert shown.longreprtext == "all\nof it"


def test_show_otherwise() -> None:
    """The terminal shows the lines, and whoever asks for the text gets the text."""
    shown = compat.show_otherwise(compat.text_repr("all\nof it", "test_it.py", 7, "CRASH: title"), [("short", {})])
    file = io.StringIO()
    shown.toterminal(TerminalWriter(file))
    assert file.getvalue() == "short\n"
    assert str(shown) == "all\nof it"
    assert shown.reprcrash.message == "CRASH: title"
    assert compat.show_otherwise("plain", []) == "plain"


def test_remove_from_hook() -> None:
    specification, implementation = pluggy.HookspecMarker("compat"), pluggy.HookimplMarker("compat")

    class Hooks:
        @specification
        def one(self) -> None: ...

        @specification
        def two(self) -> None: ...

    class Plugin:
        @implementation
        def one(self) -> int:
            return 1

        @implementation
        def two(self) -> int:
            return 2

    manager = pluggy.PluginManager("compat")
    manager.add_hookspecs(Hooks)
    manager.register(plugin := Plugin())
    compat.remove_from_hook(manager.hook.one, plugin)
    assert manager.hook.one() == []
    assert manager.hook.two() == [2]


def test_recording_warnings(pytester: pytest.Pytester) -> None:
    item = pytester.getitem(
        "import pytest\n@pytest.mark.filterwarnings('ignore:not this')\ndef test_it(): pass", "test_it"
    )
    recorded = []

    class Plugin:
        def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, nodeid: str) -> None:
            recorded.append((str(warning_message.message), nodeid))

    item.config.pluginmanager.register(Plugin())
    with compat.recording_warnings(item):
        warnings.warn("this", stacklevel=1)
        warnings.warn("not this", stacklevel=1)
    assert recorded == [("this", item.nodeid)]


@pytest.mark.skipif("not config.pluginmanager.hasplugin('threadexception')")
def test_late_error_warners(request: pytest.FixtureRequest) -> None:
    def fail() -> None:
        raise RuntimeError("in a thread")

    class Failing:
        def __del__(self) -> None:
            raise RuntimeError("in a finalizer")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    Failing()
    gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for warn in compat.late_error_warners(request.config):
            warn(request.config)
    texts = [str(warning.message) for warning in told]
    assert len(texts) == 2
    assert "in a thread" in texts[0]
    assert "in a finalizer" in texts[1]


def test_junit_log(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        from pytest_rlstability.compat.pytest import JunitLog

        taken = []

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_teardown(item):
            result = yield
            log = JunitLog(item.config)
            if item.name == "test_taken":
                properties, attributes = log.take()
                taken.append((properties, {"level": attributes["level"]}))
            else:
                log.add(item, *taken[0])
            return result
        """
    )
    pytester.makepyfile(
        """
        def test_taken(record_testsuite_property, record_xml_attribute):
            record_testsuite_property("machine", "green")
            record_xml_attribute("level", "3")

        def test_given(): pass
        """
    )
    pytester.runpytest_subprocess("--junitxml=junit.xml", "-o", "junit_family=xunit1")
    document = ElementTree.parse(pytester.path / "junit.xml")
    assert [(one.get("name"), one.get("value")) for one in document.iter("property")] == [("machine", "green")]
    levels = {case.get("name"): case.get("level") for case in document.iter("testcase")}
    assert levels["test_given"] == "3"


def test_collected_nothing(pytester: pytest.Pytester) -> None:
    report = compat.collected_nothing(pytester.getmodulecol("def test_it(): pass"))
    assert report.passed
    assert report.result == []


def test_a_collect_error_in_the_junit_log(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        from pytest_rlstability.compat.pytest import JunitLog, collect_error, text_repr

        @pytest.hookimpl(tryfirst=True)
        def pytest_make_collect_report(collector):
            if isinstance(collector, pytest.Module):
                return collect_error(collector, text_repr("all of it", "test_it.py", 7, "CRASH: title"))

        @pytest.hookimpl(trylast=True)
        def pytest_collectreport(report):
            if report.failed:
                JunitLog(config).describe_error(report, "CRASH: title", [("signal", "SIGSEGV")])

        def pytest_configure(config): globals()["config"] = config
        """
    )
    pytester.makepyfile(test_it="def test_it(): pass")
    shown = pytester.runpytest_subprocess("--junitxml=junit.xml")
    shown.stdout.fnmatch_lines(["ERROR test_it.py - CRASH: title"])
    (case,) = ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
    assert [error.get("message") for error in case.iter("error")] == ["CRASH: title"]
    assert [(one.get("name"), one.get("value")) for one in case.iter("property")] == [("signal", "SIGSEGV")]


def test_junit_log_off(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> None:
    if pytestconfig.option.xmlpath is None:
        log = compat.JunitLog(pytestconfig)
        log.add(request.node, [("name", "value")], {})
        assert log.take() == ([], {})


@pytest.fixture
def failed_subtest(pytester: pytest.Pytester) -> tuple[pytest.Item, pytest.TestReport]:
    """A test that has passed, and the report of a failed subtest of another test."""
    pytest.importorskip("_pytest.subtests", reason="subtests are new in pytest 9.0")
    failing, passing = pytester.getitems(
        """
        def test_failing(subtests):
            with subtests.test(level="x"):
                assert 0

        def test_passing(subtests): pass
        """
    )
    failing.config.pluginmanager.register(logged := Logged())
    compat.run_protocol(failing, passing)
    return passing, logged.reports[0]


def test_subtest_arguments(failed_subtest: tuple[pytest.Item, pytest.TestReport]) -> None:
    item, report = failed_subtest
    data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
    object.__setattr__(report.context, "kwargs", {"level": "x"})  # type: ignore[attr-defined]
    compat.keep_subtest_arguments(data, report)
    assert compat.subtest_arguments(data) == {"level": "x"}
    assert compat.subtest_arguments({}) is None


def test_restore_subtest(failed_subtest: tuple[pytest.Item, pytest.TestReport]) -> None:
    item, report = failed_subtest
    passed = compat.run_protocol(item, None)[1]
    compat.restore_subtest(item, report, {"level": "y"})
    assert report.context.kwargs == {"level": "y"}  # type: ignore[attr-defined]
    item.config.hook.pytest_report_teststatus(report=passed, config=item.config)
    assert passed.failed, "a test fails with its subtests"


def test_base_temp(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    base = compat.base_temp(request.config)
    assert base is not None
    assert base in tmp_path.parents


def test_is_rewritten():
    assert compat.is_rewritten(sys.modules[__name__])
    assert not compat.is_rewritten(sys)


def test_begin_live_log(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfigure("--log-cli-level=INFO")
    handler = config.pluginmanager.getplugin("logging-plugin").log_cli_handler
    handler._first_record_emitted = True
    compat.begin_live_log(config)
    assert not handler._first_record_emitted
    compat.begin_live_log(pytester.parseconfigure("-p", "no:logging"))

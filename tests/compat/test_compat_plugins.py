"""Each private part of pytest-timeout, pytest-xdist and coverage that is touched, and what it is expected to do."""

from __future__ import annotations

import os
import re
import socket
from typing import Any

import pytest

from pytest_rlstability.compat.plugins import (
    allowed_reruns,
    close_when_silent,
    count_attempts,
    rerun_delay,
    timeout_settings,
)


def test_timeout_settings(pytester: pytest.Pytester) -> None:
    marked, plain = pytester.getitems(
        """
        import pytest

        @pytest.mark.timeout(7, method="thread", func_only=True)
        def test_marked(): pass

        def test_plain(): pass
        """
    )
    settings = timeout_settings(marked)
    assert (settings.timeout, settings.method, settings.func_only) == (7, "thread", True)
    assert not timeout_settings(plain).timeout
    plain.config.pluginmanager.unregister(name="timeout")
    assert timeout_settings(plain) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_redirect_coverage(pytester: pytest.Pytester) -> None:
    pytest.importorskip("coverage")
    pytester.makepyfile(program="def in_child():\n    return 1\n\ndef in_parent():\n    return 2\n")
    script = pytester.makepyfile(
        script="""
        import os, coverage
        from pytest_rlstability.compat.plugins import redirect_coverage

        measurement = coverage.Coverage(data_file="parent.coverage")
        measurement.start()
        import program
        if (child := os.fork()) == 0:
            program.in_child()
            measurement.stop()
            redirect_coverage(measurement, os.path.abspath("child.coverage"))
            measurement.save()
            os._exit(0)
        os.waitpid(child, 0)
        program.in_parent()
        measurement.stop()
        measurement.save()
        for name in ("child", "parent"):
            data = coverage.CoverageData(f"{name}.coverage")
            data.read()
            print(name, sorted(data.lines(program.__file__)))
        """
    )
    result = pytester.runpython(script)
    result.stdout.fnmatch_lines(["child [[]1, 2, 4[]]", "parent [[]1, 4, 5[]]"])


def test_worker_events(pytester: pytest.Pytester) -> None:
    """``receive_worker_event`` and ``send_worker_event``: at once, in the main thread, xdist's own events untouched."""
    pytest.importorskip("xdist")
    pytester.makeconftest(
        """
        import threading
        from pytest_rlstability.compat.plugins import receive_worker_event, send_worker_event

        seen = []

        def pytest_configure_node(node):
            assert receive_worker_event(node, "compat", lambda text: seen.append((text, threading.current_thread())))

        def pytest_runtest_call(item):
            assert send_worker_event(item.config, "compat", item.name)

        def pytest_runtest_logreport(report):
            if report.when == "call" and not hasattr(report, "node"):
                return
            if report.when == "call":
                assert seen == [("test_it", threading.main_thread())]

        def pytest_terminal_summary(terminalreporter):
            terminalreporter.write_line(f"seen {[text for text, _ in seen]}")
        """
    )
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_subprocess("-n1")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["seen [[]'test_it'[]]"])


def test_no_worker(pytestconfig: pytest.Config) -> None:
    from pytest_rlstability.compat.plugins import send_worker_event

    if not hasattr(pytestconfig, "workerinput"):
        assert not send_worker_event(pytestconfig, "compat", "text")


def test_close_when_silent() -> None:
    pytest.importorskip("execnet")
    import execnet

    group = execnet.Group()
    try:
        group.makegateway("popen//id=server")
        gateway = group.makegateway("socket//installvia=server")
        close_when_silent(gateway, 45)
        connection = gateway._io.sock
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 45_000
        close_when_silent(group["server"], 45)
    finally:
        group.terminate(timeout=5)


def test_what_is_used_of_xdists_controller_and_worker() -> None:
    """``reporting_for`` and ``replace_workers_elsewhere``; tests/session/test_lost_hosts.py has what they do."""
    pytest.importorskip("xdist")
    import inspect

    from xdist import dsession, remote

    assert list(inspect.signature(dsession.DSession._clone_node).parameters) == ["self", "node"]
    uses = inspect.getsource(dsession.DSession._clone_node)
    assert set(re.findall(r"\bnode\.(\S+)", uses)) == {"gateway.spec"}
    assert "_active_nodes" in inspect.getsource(dsession.DSession.__init__)
    assert "self.session.items[self.item_index].nodeid == report.nodeid" in inspect.getsource(remote)


@pytest.mark.parametrize("options, times", [((), 0), (("--reruns=2", "--reruns-delay=3"), 2),
                                            (("--reruns=2", "--only-rerun=OSError"), 0),
                                            (("--reruns=2", "--rerun-except=CRASH"), 0)])  # fmt: skip
def test_allowed_reruns(pytester: pytest.Pytester, options: tuple[str, ...], times: int) -> None:
    """``rerun_delay`` and ``count_attempts`` too; tests/session/test_plugins.py has what they do."""
    pytest.importorskip("pytest_rerunfailures")
    pytester.makeini(f"[pytest]\naddopts = {' '.join(options)}\n")
    item = pytester.getitem("def test_it(): pass", "test_it")
    config: Any = item.config
    assert allowed_reruns(item, "VerdictFailure: CRASH: SIGSEGV in call") == times
    assert rerun_delay(item, 1) == (3 if "--reruns-delay=3" in options else 0)
    count_attempts(config, "test_it.py::test_it", 2)
    if hasattr(config, "failures_db"):
        assert config.failures_db.get_test_failures("test_it.py::test_it") == 2
        assert config.failures_db.get_test_failures("another") == 0


def test_allure_results_are_dropped_and_named() -> None:
    """``drop_allure_result`` and ``set_allure_message``; tests/session/test_plugins.py has what they do."""
    pytest.importorskip("allure_pytest")
    import inspect

    from allure_commons.reporter import AllureReporter
    from allure_pytest.listener import AllureListener, ItemCache

    assert "self._cache" in inspect.getsource(AllureListener.__init__)
    assert "self.allure_logger" in inspect.getsource(AllureListener.__init__)
    assert {"get", "pop"} <= vars(ItemCache).keys()
    assert {"drop_test", "get_test"} <= vars(AllureReporter).keys()

"""A chaos proxy is its test's guest: quiet while idle, gone afterwards, whatever happened to the test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_rlstability.kits.proxy.handle import ChaosProxy

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_nothing_is_left_after_close(listener: socket.socket) -> None:
    before = psutil.Process()
    descriptors, threads = before.num_fds(), threading.active_count()
    with ChaosProxy(*listener.getsockname()) as proxy:
        proxy.add("stall")
        clients = [socket.create_connection((proxy.host, proxy.port)) for _ in range(5)]
        process, port = psutil.Process(proxy.pid), proxy.port
    for client in clients:
        client.close()
    assert not process.is_running()
    assert psutil.Process().num_fds() == descriptors
    assert threading.active_count() == threads
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert proxy.stats.connections == 5


def test_nobody_else_can_connect_to_the_control_line(listener: socket.socket) -> None:
    with ChaosProxy(*listener.getsockname()) as proxy:
        listening = {one.laddr.port for one in psutil.Process(proxy.pid).net_connections() if one.status == "LISTEN"}
        assert listening == {proxy.port}


def test_the_fixture_ends_its_proxies(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import psutil, socket
        started = []

        def test_first(chaos_proxy):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                started.extend(psutil.Process(chaos_proxy(*listener.getsockname()).pid) for _ in range(2))
                assert all(process.is_running() for process in started)
            assert 0, "a failing test must not leave them behind"

        def test_second():
            assert len(started) == 2
            assert not any(process.is_running() for process in started)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)


@pytest.mark.slow
def test_a_proxy_a_lap_is_no_leak(run_pytest: Any) -> None:
    outcome = run_pytest(
        """
        import socket
        import pytest

        @pytest.mark.rl_no_leak
        def test_laps(chaos_proxy, rl_laps):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                for _ in rl_laps:
                    with chaos_proxy(*listener.getsockname()) as proxy:
                        proxy.add("reset")
        """,
        "--rl-leak-budget=90s",
    )
    assert outcome.tests == {"test_laps": "passed"}, outcome.details
    assert "undecided" not in outcome.text


@linux_only
def test_it_dies_with_a_test_that_is_killed_while_a_forked_worker_lives(listener: socket.socket) -> None:
    script = """
        import os, sys, time
        from pytest_rlstability.kits.proxy.handle import ChaosProxy
        proxy = ChaosProxy("127.0.0.1", int(sys.argv[1]))
        worker = os.fork()  # holds a copy of the control line
        if worker == 0:
            time.sleep(60)
            os._exit(0)
        print(proxy.pid, worker, flush=True)
        os.kill(os.getpid(), 9)
    """
    port = str(listener.getsockname()[1])
    command = [sys.executable, "-c", textwrap.dedent(script), port]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as owner:
        assert owner.stdout is not None
        proxy, worker = map(psutil.Process, map(int, owner.stdout.readline().split()))
        try:
            _wait_until(lambda: _has_ended(proxy))
            assert worker.is_running()
        finally:
            worker.kill()


@linux_only
def test_a_reset_is_real_although_a_forked_worker_lives(listener: socket.socket) -> None:
    """A proxy inside the test's process would lend its sockets to the worker, and closing them would send nothing."""
    with ChaosProxy(*listener.getsockname()) as proxy:
        proxy.add("reset", after_bytes=3)
        with socket.create_connection((proxy.host, proxy.port), timeout=30) as client:
            server, _ = listener.accept()
            worker = os.fork()
            if worker == 0:
                time.sleep(60)
                os._exit(0)
            try:
                server.sendall(b"answer")
                assert client.recv(100) == b"ans"
                with pytest.raises(ConnectionResetError):
                    client.recv(100)
            finally:
                server.close()
                os.kill(worker, signal.SIGKILL)
                os.waitpid(worker, 0)


@linux_only
def test_idle_it_never_wakes(listener: socket.socket) -> None:
    """A stall is recognised by idle processes, so the proxy must not wake up."""
    with ChaosProxy(*listener.getsockname()) as proxy:
        proxy.add("stall")
        with socket.create_connection((proxy.host, proxy.port), timeout=30):
            server, _ = listener.accept()
            with server:
                server.sendall(b"never arrives")
                process = psutil.Process(proxy.pid)
                _wait_until(lambda: proxy.stats.stall == 1)
                _wait_until_asleep(process)
                before = process.num_ctx_switches(), process.cpu_times()
                time.sleep(1)
                assert (process.num_ctx_switches(), process.cpu_times()) == before


def test_a_proxy_that_died_is_our_error_not_the_tests(listener: socket.socket) -> None:
    proxy = ChaosProxy(*listener.getsockname())
    psutil.Process(proxy.pid).kill()
    with pytest.raises(RuntimeError, match=r"the chaos proxy's process \(pid \d+\) ended with status -9"):
        proxy.add("reset")
    with pytest.raises(RuntimeError, match="not a failure of the code under test"):
        proxy.close()


@linux_only
def test_a_thousand_faults_leave_no_descriptor(listener: socket.socket) -> None:
    with ChaosProxy(*listener.getsockname()) as proxy:
        process = psutil.Process(proxy.pid)
        proxy.add("reset")
        before = process.num_fds()
        for _ in range(1000):
            with socket.create_connection((proxy.host, proxy.port), timeout=30) as client:
                server, _ = listener.accept()
                with server:
                    server.sendall(b"answer")
                    with pytest.raises(ConnectionResetError):
                        client.recv(100)
        assert proxy.stats.reset == 1000
        assert process.num_fds() == before


@pytest.mark.slow
@linux_only
def test_a_client_that_gives_up_on_a_stall_is_let_go(listener: socket.socket) -> None:
    with ChaosProxy(*listener.getsockname()) as proxy:
        process = psutil.Process(proxy.pid)
        proxy.add("stall")
        before = process.num_fds()
        with socket.create_connection((proxy.host, proxy.port), timeout=30):
            server, _ = listener.accept()
            server.sendall(b"answer")
            _wait_until(lambda: proxy.stats.stall == 1)
        server.settimeout(30)
        assert server.recv(100) == b"", "the server sees the end at once"
        # The connection itself is kept a few seconds: a half-close looks the same.
        _wait_until(lambda: process.num_fds() == before)
        server.close()


def _wait_until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < give_up, "it never happened"
        time.sleep(0.02)


def _wait_until_asleep(process: psutil.Process) -> None:
    seen = [-1]

    def slept() -> bool:
        seen.append(process.num_ctx_switches().voluntary)
        return seen[-1] == seen[-2]

    _wait_until(slept)


def _has_ended(process: psutil.Process) -> bool:
    """Orphans may stay zombies where no process reaps them, as in a container."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_a_fault_that_never_strikes_is_a_warning(run_pytest: Any) -> None:
    outcome = run_pytest(
        """
        import socket

        def serve_one(chaos_proxy, **when):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                proxy = chaos_proxy(*listener.getsockname())
                proxy.add("cut", **when)
                with socket.create_connection((proxy.host, proxy.port)) as client:
                    server, _ = listener.accept()
                    with server:
                        server.sendall(b"hello")
                        client.recv(5)

        def test_missed(chaos_proxy):
            serve_one(chaos_proxy, after_bytes=1000)

        def test_struck(chaos_proxy):
            serve_one(chaos_proxy)
        """
    )
    assert outcome.tests == {"test_missed": "passed", "test_struck": "passed"}
    missed = "ChaosWarning: chaos_proxy: cut was added and never struck (1 connections, 0 bytes up, 5 down)"
    assert outcome.text.count("never struck") == 1
    assert missed in outcome.text, outcome.text

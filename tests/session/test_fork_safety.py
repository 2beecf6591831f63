"""Threads that run before the fork: where they would be missing, tests get an interpreter that has its own."""

from __future__ import annotations

import pytest

THREADS = """
    import asyncio, threading
    from concurrent.futures import ThreadPoolExecutor
    import pytest

    POOL = ThreadPoolExecutor(1)
    POOL.submit(int).result()
    LOOP = asyncio.new_event_loop()
    threading.Thread(target=LOOP.run_forever, daemon=True).start()

    async def five():
        return 5

    def test_pool():
        assert POOL.submit(lambda: 5).result() == 5

    @pytest.mark.rl_isolated
    def test_loop():
        assert asyncio.run_coroutine_threadsafe(five(), LOOP).result() == 5
"""


def test_threads_that_imports_start_are_there_in_the_tests(run_pytest):
    outcome = run_pytest(THREADS, "--rl-group=auto")
    assert set(outcome.tests.values()) == {"passed"}, outcome.text
    assert "spawn backend, because threads run since modules were imported" in outcome.text
    assert "ThreadPoolExecutor-0_0" in outcome.text


def test_a_pool_of_openmp_is_paused_and_nothing_is_said(run_pytest):
    pytest.importorskip("torch")
    outcome = run_pytest(
        """
        import pytest, torch
        MATRIX = torch.rand(900, 900)
        MATRIX @ MATRIX

        def test_shared(): MATRIX @ MATRIX

        @pytest.mark.rl_isolated
        def test_own(): MATRIX @ MATRIX
        """,
        "--rl-group=auto",
    )
    assert set(outcome.tests.values()) == {"passed"}, outcome.text
    assert "2 tests in 2 processes (zygote)" in outcome.text


def test_a_thread_that_has_ended_is_no_reason(run_pytest):
    source = (
        "import threading\nt = threading.Thread(target=int)\nt.start()\nt.join()\nimport numpy\ndef test_it(): pass\n"
    )
    assert "1 test in 1 process (zygote)" in run_pytest(source).text


def test_a_conftest_that_forbids_sockets_changes_nothing(run_pytest):
    run_pytest.write(
        "conftest.py",
        """
        import socket

        class Guard(socket.socket):
            def __new__(cls, *_, **__):
                raise RuntimeError("no network")

        socket.socket = Guard
        """,
    )
    outcome = run_pytest("def test_a(): pass\ndef test_b(): assert 0\n", "-p", "no:rerunfailures", "-p", "no:asyncio")
    assert outcome.tests == {"test_a": "passed", "test_b": "failed"}, outcome.text

"""Threads that run before the fork: where they would be missing, tests get an interpreter that has its own."""

from __future__ import annotations

import subprocess

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
    assert "template backend, because threads run since test_it.py was imported" in outcome.text
    assert "concurrent.futures.thread (ThreadPoolExecutor-0_0); asyncio.base_events (Thread-" in outcome.text
    assert "2 tests in 2 processes (template)" in outcome.text


LIBRARY = """
import os
with open(os.environ["IMPORTED"], "a") as file:
    file.write(f"{__name__}\\n")
"""
NATIVE_POOL = """
#include <pthread.h>
#include <unistd.h>
static int working;
static void *work(void *_) { for (;;) { working = getpid(); usleep(1000); } return 0; }
void start(void) { pthread_t thread; pthread_create(&thread, 0, work, 0); }
int worker(void) { working = 0; for (int i = 0; i < 10000 && !working; i++) usleep(1000); return working; }
"""


def test_the_template_imports_libraries_once_and_no_modules_of_the_project(run_pytest, monkeypatch):
    notes = run_pytest.path / "imported"
    run_pytest.write("site-packages/quiet_library/__init__.py", LIBRARY)
    run_pytest.write("site-packages/quiet_library/late.py", LIBRARY)
    thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    run_pytest.write("site-packages/threaded_library.py", LIBRARY + thread)
    run_pytest.write("site-packages/last_library.py", LIBRARY)
    run_pytest.write("own_module.py", LIBRARY)
    monkeypatch.setenv("PYTHONPATH", f"{run_pytest.path / 'site-packages'}:{run_pytest.path}")
    monkeypatch.setenv("IMPORTED", str(notes))
    outcome = run_pytest(
        """
        import quiet_library.late, threaded_library, last_library, own_module, pytest

        @pytest.mark.rl_isolated
        @pytest.mark.parametrize("number", range(3))
        def test_marked(number): pass
        """
    )
    assert set(outcome.tests.values()) == {"passed"}, outcome.text
    assert "3 tests in 3 processes (template)" in outcome.text
    names = notes.read_text().split()
    # Once by pytest, once by the template, and once more when it began again without the library that has a thread.
    assert [names.count(name) for name in ("quiet_library", "quiet_library.late", "last_library")] == [3, 3, 3]
    assert names.count("threaded_library") >= 5
    assert names.count("own_module") >= 4
    notes.unlink()
    assert set(run_pytest.run().tests.values()) == {"passed"}
    assert notes.read_text().split().count("last_library") == 2, "which library has a thread is in pytest's cache"


def test_a_native_thread_without_a_name_is_found(run_pytest, tmp_path):
    source, library = tmp_path / "pool.c", tmp_path / "libpool.so"
    source.write_text(NATIVE_POOL)
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", str(library), str(source)], check=True)
    outcome = run_pytest(
        f"""
        import ctypes, os
        POOL = ctypes.CDLL({str(library)!r})
        POOL.start()
        def test_pool(): assert POOL.worker() == os.getpid()
        """
    )
    assert outcome.tests == {"test_pool": "passed"}, outcome.text
    assert "missing in a fork: libpool.so (" in outcome.text


def test_a_stall_after_a_fork_that_was_asked_for_says_so_first(run_pytest):
    outcome = run_pytest(THREADS, "--rl-backend=zygote", "-k", "test_pool")
    assert outcome.tests == {"test_pool": "failed"}, outcome.text
    assert "rl-stability: tests are forked, as asked, although threads run since test_it.py" in outcome.text
    report = outcome.text.partition("STALL: deadlock")[2].splitlines()
    assert "its process was forked although threads run since test_it.py was imported" in report[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "use"),
    [
        ("jax.numpy", "float(module.ones((300, 300)).sum())"),
        ("polars", "module.DataFrame({'a': range(9000)}).group_by('a').len()"),
        ("pygame", "module.init()"),
        ("sklearn.cluster", "module.KMeans(3, n_init=1).fit([[float(x)] for x in range(3000)])"),
        ("cv2", "module.GaussianBlur(__import__('numpy').ones((900, 900)), (31, 31), 3)"),
        ("tensorflow", "float(module.reduce_sum(module.ones((300, 300))))"),
    ],
)
def test_libraries_that_were_used_at_import_work_in_tests(run_pytest, monkeypatch, library, use):
    pytest.importorskip(library)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("SDL_AUDIODRIVER", "dummy")
    outcome = run_pytest(
        f"""
        import importlib, pytest
        module = importlib.import_module({library!r})
        {use}

        def test_shared(): {use}

        @pytest.mark.rl_isolated
        def test_own(): {use}
        """,
        "--rl-group=auto",
    )
    assert set(outcome.tests.values()) == {"passed"}, outcome.text
    assert "(spawn)" not in outcome.text
    assert "Exception ignored" not in outcome.text


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

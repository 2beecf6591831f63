"""A STALL names what the test waits for: a task, a dead worker, the holder of a pipe or database, an exit callback."""

from __future__ import annotations

import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

ASYNCIO = """
    import asyncio
    from unittest import mock
    import pytest

    @pytest.mark.rl_no_stall(after="1 s")
    def test_reply_that_never_comes():
        async def wait_for_reply():
            await asyncio.get_running_loop().create_future()

        async def client():
            await wait_for_reply()

        async def main():
            await asyncio.create_task(client(), name="client-7")

        with mock.patch("asyncio.all_tasks", side_effect=OSError), mock.patch("os.write", side_effect=OSError):
            asyncio.run(main())
"""


def test_an_asyncio_stall_names_the_task_and_its_awaits(run_pytest):
    outcome = run_pytest(ASYNCIO, "--rl-native=off")
    assert outcome.messages["test_reply_that_never_comes"].endswith("in call, in task client-7"), outcome.text
    report = outcome.details["test_reply_that_never_comes"]
    headline, _, tasks = report.partition("Waiting tasks:")
    assert "in wait_for_reply" in headline
    assert tasks.index("task client-7") < tasks.index("in client") < tasks.index("in wait_for_reply")
    assert tasks.index("in wait_for_reply") < tasks.index("task Task-1")


STALLS = """
    import atexit, os, signal, sqlite3, subprocess, sys, threading
    import pytest

    pytestmark = pytest.mark.rl_no_stall(after="2 s")

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    @pytest.mark.parametrize("method", ["fork", "forkserver"])
    def test_pool(method):
        import multiprocessing
        with multiprocessing.get_context(method).Pool(1) as pool:
            pool.map(die, [1])

    def take_and_die(lock):
        lock.acquire()
        die()

    def test_lock_of_the_dead():
        import multiprocessing
        context = multiprocessing.get_context("fork")
        lock = context.Lock()
        worker = context.Process(target=take_and_die, args=(lock,), name="actor-3")
        worker.start()
        worker.join()
        lock.acquire()

    def test_dead_process_of_no_library():
        reader, writer = os.pipe()
        if os.fork() == 0:
            die()
        os.read(reader, 1)

    def test_pipe_of_a_grandchild():
        subprocess.Popen(["sh", "-c", "sleep 301000 & exit"], stdout=subprocess.PIPE).communicate()

    def test_two_pipes_of_a_grandchild():
        pipe = subprocess.PIPE
        subprocess.Popen(["sh", "-c", "sleep 302000 & exit"], stdout=pipe, stderr=pipe).communicate()

    def test_database(tmp_path):
        holder = sqlite3.connect(tmp_path / "replay.db", isolation_level=None)
        holder.execute("create table steps(reward)")
        holder.execute("begin exclusive")
        sqlite3.connect(tmp_path / "replay.db", timeout=1000).execute("insert into steps values (1)")

    def test_exit_callback():
        @atexit.register
        def close_replay_buffer():
            threading.Event().wait()

    def test_thread_at_exit():
        def collect_rollouts():
            threading.Event().wait()
        threading.Thread(target=collect_rollouts, name="collector-1").start()

    def take(lock):
        lock.acquire()

    def test_worker_of_the_fork_server():
        import multiprocessing
        context = multiprocessing.get_context("forkserver")
        lock = context.Lock()
        lock.acquire()
        worker = context.Process(target=take, args=(lock,))
        worker.start()
        worker.join()

    def wait_inside():
        threading.Event().wait()

    def test_deadlock_inside_a_worker_of_the_fork_server():
        import multiprocessing
        worker = multiprocessing.get_context("forkserver").Process(target=wait_inside)
        worker.start()
        worker.join()
"""

WORDS = {
    "test_pool[fork]": ["Dead workers:", "ForkPoolWorker-1 (pid ", "): SIGKILL"],
    "test_pool[forkserver]": ["Dead workers:", "ForkServerPoolWorker-1 (pid ", "): SIGKILL"],
    "test_lock_of_the_dead": ["actor-3 (pid ", "): SIGKILL", "The test waits for a lock of multiprocessing."],
    "test_dead_process_of_no_library": ["Dead workers:", ": SIGKILL"],
    "test_pipe_of_a_grandchild": ["at whose other end is pid ", "(sleep 301000)"],
    "test_two_pipes_of_a_grandchild": ["at whose other end is pid ", "(sleep 302000)"],
    "test_database": ["Locked database:", "replay.db is locked by another connection of this process"],
    "test_exit_callback": ["at exit", "in close_replay_buffer, inside wait"],
    "test_thread_at_exit": ["at exit, waiting for thread collector-1", "in collect_rollouts, inside wait"],
    "test_deadlock_inside_a_worker_of_the_fork_server": [
        "STALL: deadlock",
        "waits for a worker of multiprocessing's fork server to end",
        "(multiprocessing's worker)",
        "in wait_inside",
    ],
    "test_worker_of_the_fork_server": [
        "STALL: deadlock",
        "in test_worker_of_the_fork_server, inside",
        "a lock that processes share",
    ],
}


@pytest.mark.slow
def test_what_the_test_waits_for_is_named(run_pytest):
    outcome = run_pytest(STALLS, "--rl-native=off", "-n", "5")
    for name, words in WORDS.items():
        report = outcome.details.get(name, "")
        assert report.startswith("STALL: "), f"{name}: {report}\n{outcome.text}"
        missing = [word for word in words if word not in report]
        assert not missing, f"{name}: {missing}\n{report}"
        assert "exit_checks.py" not in report, report

"""Everything a test can hang on ends as a STALL of the right class; whatever is only slow is left alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="classes are told from Linux's /proc")

DEADLOCKS = """
    import ctypes, multiprocessing, os, queue, threading, time
    import pytest

    def test_abba():
        a, b = threading.Lock(), threading.Lock()
        barrier = threading.Barrier(2)
        def take(first, second):
            with first:
                barrier.wait()
                with second:
                    pass
        threads = [threading.Thread(target=take, args=pair) for pair in ((a, b), (b, a))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @pytest.mark.timeout(100)
    def test_double_acquire_under_an_alarm_of_pytest_timeout():
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    def test_native_mutex_with_the_gil_held():
        libc = ctypes.PyDLL(None)
        mutex = ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)

    def test_queue():
        queue.Queue().get()

    def test_full_queue():
        full = queue.Queue(1)
        full.put(1)
        full.put(2)

    def test_condition():
        condition = threading.Condition()
        with condition:
            condition.wait()

    def test_event():
        threading.Event().wait()

    def test_semaphore_of_multiprocessing():
        lock = multiprocessing.Lock()
        lock.acquire()
        lock.acquire()

    def test_forked_child_that_deadlocks():
        pid = os.fork()
        if pid == 0:
            threading.Event().wait()
        os.waitpid(pid, 0)

    @pytest.fixture
    def stuck_setup():
        threading.Event().wait()

    def test_in_setup(stuck_setup):
        pass

    @pytest.fixture
    def stuck_teardown():
        yield
        threading.Event().wait()

    def test_in_teardown(stuck_teardown):
        pass

    def test_at_exit():
        threading.Thread(target=threading.Event().wait).start()

    @pytest.mark.rl_isolated(backend="spawn")
    def test_at_exit_spawned():
        threading.Thread(target=threading.Event().wait).start()
"""

DEADLOCK_PHASES = {
    "test_in_setup": "setup",
    "test_in_teardown": "teardown",
    "test_at_exit": "exit",
    "test_at_exit_spawned": "exit",
}


def failures(outcome, expected):
    """What is not as expected: test name -> what was found."""
    wrong = {}
    for name, (kind, phase) in expected.items():
        properties = outcome.properties.get(name, {})
        message = outcome.messages.get(name, "")
        found = (properties.get("rl_stability.class"), properties.get("rl_stability.phase"))
        if not message.startswith(f"STALL: {kind}, no progress for ") or found != (kind, phase):
            wrong[name] = (message, found)
    return wrong


def test_deadlocks_are_told_long_before_the_limit(run_pytest):
    outcome = run_pytest(DEADLOCKS, "--rl-stall-after=100s", "--rl-native=off", "-n", "7")
    names = [line.split("(")[0].split()[1] for line in DEADLOCKS.splitlines() if line.strip().startswith("def test_")]
    assert set(outcome.tests) == set(names)
    expected = {name: ("deadlock", DEADLOCK_PHASES.get(name, "call")) for name in names}
    assert failures(outcome, expected) == {}, outcome.text
    assert "thread MainThread: S, waits for a lock" in outcome.details["test_abba"]


BLOCKED = """
    import asyncio, os, signal, socket, subprocess, sys, threading, time
    import pytest

    pytestmark = pytest.mark.rl_no_stall(after="4 s")

    def test_pipe_from_a_sleeping_child():
        child = subprocess.Popen(["sleep", "303"], stdout=subprocess.PIPE)
        child.stdout.read(1)

    def test_full_pipe():
        child = subprocess.Popen(["sleep", "304"], stdin=subprocess.PIPE)
        child.stdin.write(bytes(1 << 20))

    def test_silent_server():
        code = (
            "import socket, time; server = socket.create_server(('127.0.0.1', 0)); "
            "print(server.getsockname()[1], flush=True); client = server.accept(); time.sleep(305)"
        )
        server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        client = socket.create_connection(("127.0.0.1", int(server.stdout.readline())))
        client.recv(1)

    def test_socket_pair_with_a_worker():
        import multiprocessing
        mine, its = multiprocessing.Pipe()
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(306,), daemon=True)
        worker.start()
        its.close()
        mine.recv()

    def test_asyncio_future_never_set():
        async def wait():
            await asyncio.get_running_loop().create_future()
        asyncio.run(wait())

    def test_silent_server_beside_a_ticking_loop(rl_heartbeat):
        server = socket.create_server(("127.0.0.1", 0))
        def tick():
            while True:
                time.sleep(0.05)
        threading.Thread(target=tick, daemon=True).start()
        rl_heartbeat()
        socket.create_connection(server.getsockname()).recv(1)

    def test_stops_itself():
        os.kill(os.getpid(), signal.SIGSTOP)

    def test_stopped_grandchild():
        child = subprocess.Popen(["sh", "-c", "sleep 307 & kill -STOP $!; wait"])
        child.wait()

    def test_sleeps_too_long():
        time.sleep(308)
"""

BLOCKED_WORDS = {
    "test_pipe_from_a_sleeping_child": ["in read on pipe:[", "at whose other end is pid ", "(sleep 303), which sleeps"],
    "test_full_pipe": ["in write on pipe:[", "(sleep 304), which sleeps"],
    "test_silent_server": ["(peer 127.0.0.1:", "served by pid ", "which sleeps"],
    "test_socket_pair_with_a_worker": ["in read on socket:[", "(forked from the test), which sleeps", "Worker stacks:"],
    "test_asyncio_future_never_set": ["waits for input or output on socket:["],
    "test_silent_server_beside_a_ticking_loop": ["MainThread: S, in recvfrom on socket:["],
    "test_stops_itself": ["stopped by a signal"],
    "test_stopped_grandchild": ["waits for a child process to end", "stopped by a signal"],
    "test_sleeps_too_long": ["S, sleeps"],
}


def test_what_is_blocked_names_its_peer(run_pytest):
    outcome = run_pytest(BLOCKED, "--rl-native=off", "-n", "8")
    assert failures(outcome, dict.fromkeys(BLOCKED_WORDS, ("blocked", "call"))) == {}, outcome.text
    for name, words in BLOCKED_WORDS.items():
        missing = [word for word in words if word not in outcome.details[name]]
        assert not missing, f"{name}: {missing}\n{outcome.details[name]}"


SPINNING = """
    import threading, time
    import pytest

    pytestmark = pytest.mark.rl_no_stall(after="3 s")

    def test_busy_loop_after_progress(rl_laps):
        for lap in rl_laps:
            while lap == 5:
                pass

    def test_polling_livelock_after_progress(rl_heartbeat):
        rl_heartbeat()
        never = threading.Event()
        while not never.wait(0.01):
            pass
"""


def test_activity_without_beats_spins(run_pytest):
    outcome = run_pytest(SPINNING, "--rl-native=off")
    names = ("test_busy_loop_after_progress", "test_polling_livelock_after_progress")
    assert failures(outcome, dict.fromkeys(names, ("spinning", "call"))) == {}, outcome.text
    for name in names:
        assert f"SLOW test_it.py::{name}: no progress for" in outcome.text
    assert "lap 5" in outcome.messages["test_busy_loop_after_progress"]


def test_a_deadlock_behind_a_ticking_daemon_ends(run_pytest):
    outcome = run_pytest(
        """
        import threading, time
        import pytest

        @pytest.mark.rl_no_stall(after="3 s")
        def test_it():
            def tick():
                while True:
                    time.sleep(0.1)
            threading.Thread(target=tick, daemon=True).start()
            threading.Event().wait()
        """,
        "--rl-native=off",
    )
    assert failures(outcome, {"test_it": ("deadlock", "call")}) == {}, outcome.text


INNOCENTS = """
    import multiprocessing, os, signal, subprocess, sys, threading, time
    import pytest

    pytestmark = pytest.mark.rl_no_stall(after="4 s")
    LONG = 6.0

    def test_slow_laps(rl_laps):
        end = time.monotonic() + LONG
        for _ in rl_laps:
            time.sleep(0.7)
            if time.monotonic() > end:
                break

    def test_computing_after_beats_in_setup(beats):
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            sum(range(10000))

    @pytest.fixture
    def beats(rl_heartbeat):
        rl_heartbeat()

    def test_waiting_for_a_busy_child():
        code = f"import time; e = time.time() + {LONG}\\nwhile time.time() < e: pass"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_waiting_for_an_orphan_that_works():
        code = f"import time; e = time.time() + {LONG}\\nwhile time.time() < e: pass"
        reader, writer = os.pipe()
        if os.fork() == 0:
            if os.fork() == 0:
                os.close(reader)
                exec(code)
            os._exit(0)
        os.close(writer)
        os.wait()
        os.read(reader, 1)

    def test_messages_between_processes():
        mine, its = multiprocessing.Pipe()
        def answer():
            for _ in range(12):
                its.send(its.recv())
        worker = multiprocessing.get_context("fork").Process(target=answer, daemon=True)
        worker.start()
        for number in range(12):
            time.sleep(0.5)
            mine.send(number)
            assert mine.recv() == number
        worker.join()

    def test_joining_a_thread_that_polls():
        def poll():
            for _ in range(12):
                time.sleep(0.5)
        thread = threading.Thread(target=poll)
        thread.start()
        thread.join()

    def test_waiting_for_a_daemon_that_polls():
        done = threading.Event()
        def poll():
            for _ in range(12):
                time.sleep(0.5)
            done.set()
        threading.Thread(target=poll, daemon=True).start()
        done.wait()

    def test_an_alarm_of_its_own():
        done = threading.Event()
        signal.signal(signal.SIGALRM, lambda *_: done.set())
        signal.alarm(4)
        done.wait()

    def test_sleeping_less_than_the_limit():
        time.sleep(3)

    @pytest.fixture
    def long_setup():
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            compile("x = 1\\n" * 500, "x", "exec")

    def test_long_setup(long_setup):
        pass

    @pytest.mark.rl_no_stall(after=0)
    def test_watch_off():
        released = threading.Lock()
        released.acquire()
        threading.Timer(5, released.release).start()
        released.acquire()

    def test_zombies_and_churn():
        zombie = subprocess.Popen(["true"])
        for _ in range(20):
            subprocess.run(["sleep", "0.3"])
"""


def test_innocents_on_a_loaded_machine(run_pytest):
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        outcome = run_pytest(INNOCENTS, "--rl-native=off", "-n", "6")
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert outcome.tests, outcome.text
    assert {name: outcome.messages.get(name) for name, word in outcome.tests.items() if word != "passed"} == {}, (
        outcome.text
    )
    assert "STALL" not in outcome.text

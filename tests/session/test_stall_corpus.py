"""Everything a test can hang on ends as a STALL of the right class; whatever is only slow is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="classes are told from Linux's /proc")

DEADLOCKS = """
    import ctypes, multiprocessing, os, queue, signal, threading, time
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

    def test_in_the_handler_of_an_alarm_that_went_off():
        lock = threading.Lock()
        signal.signal(signal.SIGALRM, lambda *_: lock.acquire())
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with lock:
            time.sleep(0.5)

    def test_with_an_alarm_that_was_taken_back():
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.alarm(90)
        signal.alarm(0)
        threading.Event().wait()

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


@pytest.mark.slow
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
        child = subprocess.Popen(["sleep", "303000000"], stdout=subprocess.PIPE)
        child.stdout.read(1)

    def test_full_pipe():
        child = subprocess.Popen(["sleep", "304000000"], stdin=subprocess.PIPE)
        child.stdin.write(bytes(1 << 20))

    def test_silent_server():
        code = (
            "import socket, time; server = socket.create_server(('127.0.0.1', 0)); "
            "print(server.getsockname()[1], flush=True); client = server.accept(); time.sleep(305000000)"
        )
        server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        client = socket.create_connection(("127.0.0.1", int(server.stdout.readline())))
        client.recv(1)

    def test_socket_pair_with_a_worker():
        import multiprocessing
        mine, its = multiprocessing.Pipe()
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(306000000,), daemon=True)
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

    def test_pipe_of_a_sleeping_child_beside_a_ticking_loop():
        def tick():
            while True:
                time.sleep(0.5)
        threading.Thread(target=tick, daemon=True).start()
        subprocess.Popen(["sleep", "309000000"], stdout=subprocess.PIPE).stdout.read(1)

    def test_select_beside_a_ticking_loop():
        import select
        def tick():
            while True:
                time.sleep(0.5)
        threading.Thread(target=tick, daemon=True).start()
        reader, writer = os.pipe()
        select.select([reader], [], [])

    def test_pause():
        signal.pause()

    def test_child_with_a_full_pipe():
        code = "import sys; sys.stdout.write('x' * 1000000)"
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE).wait()

    def test_stops_itself():
        os.kill(os.getpid(), signal.SIGSTOP)

    def test_stopped_grandchild():
        child = subprocess.Popen(["sh", "-c", "sleep 307000000 & kill -STOP $!; wait"])
        child.wait()

    def test_sleeps_too_long():
        time.sleep(308000000)

    def test_lock_on_a_file(tmp_path):
        import fcntl
        code = (
            "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
            "print(flush=True); time.sleep(310000000)"
        )
        holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "m.lock")], stdout=subprocess.PIPE)
        holder.stdout.readline()
        with open(tmp_path / "m.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    def test_named_pipe_that_nobody_writes_to(tmp_path):
        os.mkfifo(tmp_path / "commands")
        open(tmp_path / "commands").read()
"""

BLOCKED_WORDS = {
    "test_pipe_from_a_sleeping_child": [
        "in read on pipe:[",
        "at whose other end is pid ",
        "(sleep 303000000), which sleeps",
    ],
    "test_full_pipe": ["in write on pipe:[", "(sleep 304000000), which sleeps"],
    "test_silent_server": ["(peer 127.0.0.1:", "served by pid ", "which sleeps"],
    "test_socket_pair_with_a_worker": ["in read on socket:[", "(forked from the test), which sleeps", "Worker stacks:"],
    "test_lock_on_a_file": ["waits for a lock on /", "m.lock, held by pid ", "which sleeps"],
    "test_named_pipe_that_nobody_writes_to": ["is blocked opening a FIFO: no process has opened its other end"],
    "test_asyncio_future_never_set": ["which only this process can send", "Waiting tasks:", "in task Task-1"],
    "test_silent_server_beside_a_ticking_loop": ["MainThread: S, in recvfrom on socket:["],
    "test_pipe_of_a_sleeping_child_beside_a_ticking_loop": ["in read on pipe:[", "(sleep 309000000), which sleeps"],
    "test_pause": ["is in pause", "in test_pause"],
    "test_child_with_a_full_pipe": ["waits for a child process to end", "in test_child_with_a_full_pipe"],
    "test_stops_itself": ["stopped by a signal"],
    "test_stopped_grandchild": ["waits for a child process to end", "stopped by a signal"],
    "test_sleeps_too_long": ["S, sleeps"],
}


@pytest.mark.slow
def test_what_is_blocked_names_its_peer(run_pytest):
    outcome = run_pytest(BLOCKED, "-n", "8")
    assert failures(outcome, dict.fromkeys(BLOCKED_WORDS, ("blocked", "call"))) == {}, outcome.text
    for name, words in BLOCKED_WORDS.items():
        missing = [word for word in words if word not in outcome.details[name]]
        assert not missing, f"{name}: {missing}\n{outcome.details[name]}"


@pytest.mark.slow
def test_a_thread_that_polls_for_ever_is_a_stall_at_exit(run_pytest):
    outcome = run_pytest(
        """
        import threading, time
        import pytest

        @pytest.mark.rl_no_stall(after="2 s")
        def test_game_loop_never_stopped():
            def game_loop():
                while True:
                    time.sleep(0.05)
            threading.Thread(target=game_loop, name="game").start()
        """,
        "--rl-native=off",
    )
    assert failures(outcome, {"test_game_loop_never_stopped": ("blocked", "exit")}) == {}, outcome.text
    assert "thread game: S, sleeps" in outcome.details["test_game_loop_never_stopped"]


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


@pytest.mark.slow
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


TICKING = """
    import ctypes, http.server, multiprocessing, queue, socket, subprocess, sys, threading, time
    import pytest

    pytestmark = pytest.mark.rl_no_stall(after="3 s")

    def test_manager_idles():
        with multiprocessing.get_context("fork").Manager() as manager:
            manager.Queue().get()

    def test_http_server_in_another_process_idles():
        code = (
            "import http.server; server = http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler);"
            "print(server.server_port, flush=True); server.serve_forever(0.2)"
        )
        server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        client = socket.create_connection(("127.0.0.1", int(server.stdout.readline())))
        threading.Event().wait()

    def test_loader_polls_for_a_worker():
        batches = queue.Queue()
        while True:
            try:
                batches.get(timeout=2.0)
            except queue.Empty:
                continue

    def test_threads_poll_each_other():
        flags = [False, False]
        def wait_for(other):
            while not flags[other]:
                time.sleep(0.02)
        threading.Thread(target=wait_for, args=(1,), daemon=True).start()
        wait_for(0)

    def test_thread_keeps_the_interpreter():
        threading.Timer(0.2, ctypes.PyDLL(None).pause).start()
        time.sleep(0.5)

    def test_computes_on_one_line():
        while True: pass

    def test_thread_computes_on_one_line():
        def spin():
            while True: pass
        thread = threading.Thread(target=spin, daemon=True)
        thread.start()
        thread.join()
"""


@pytest.mark.slow
def test_what_only_ticks_or_spins_ends(run_pytest):
    outcome = run_pytest(TICKING, "--rl-native=off", "-n", "7")
    names = [line.split("(")[0].split()[1] for line in TICKING.splitlines() if line.strip().startswith("def test_")]
    assert {name: outcome.messages.get(name, "")[:6] for name in names} == dict.fromkeys(names, "STALL:"), outcome.text
    kinds = {name: outcome.properties[name]["rl_stability.class"] for name in names}
    assert kinds["test_computes_on_one_line"] == kinds["test_thread_computes_on_one_line"] == "spinning"
    assert kinds["test_manager_idles"] == "blocked"
    assert "SLOW test_it.py::test_manager_idles: no progress for" in outcome.text
    assert "on the same lines for" in outcome.messages["test_computes_on_one_line"]


SPAWNED_WORKER = """
    import multiprocessing, time
    import pytest

    def wait_in_the_worker(started):
        started.set()
        time.sleep(10**6)

    @pytest.mark.rl_no_stall(after="3 s")
    def test_it():
        context = multiprocessing.get_context("spawn")
        started = context.Event()
        worker = context.Process(target=wait_in_the_worker, args=(started,))
        worker.start()
        started.wait()
        worker.join()
"""


@pytest.mark.slow
def test_the_stack_of_a_spawned_worker_is_shown(run_pytest):
    outcome = run_pytest(SPAWNED_WORKER, "--rl-native=off")
    assert outcome.messages["test_it"].startswith("STALL: blocked, no progress for "), outcome.text
    stacks = outcome.details["test_it"].partition("Worker stacks:")[2]
    assert "wait_in_the_worker" in stacks, outcome.details["test_it"]


INNOCENTS = Path(__file__).parents[2] / "benchmarks" / "stall_corpus" / "test_innocents.py"


@pytest.mark.slow
def test_innocents_on_a_loaded_machine(run_pytest):
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        outcome = run_pytest(INNOCENTS.read_text(), "--rl-native=off", "-n", "10")
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert outcome.tests, outcome.text
    accused = {name: outcome.messages.get(name) for name, word in outcome.tests.items() if word in ("failed", "error")}
    assert accused == {}, outcome.text
    assert "STALL" not in outcome.text

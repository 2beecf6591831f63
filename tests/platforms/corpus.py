"""Crashes, stalls, leaks and innocent twins that need no Linux. The name says the word that each must get:
``test_crash_...`` CRASH, ``test_ok_...`` passed, ``test_fail_...`` an ordinary failure, and so on."""

import asyncio
import atexit
import faulthandler
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest

crash = faulthandler._read_null
KEPT = []


# Crashes


def test_crash_access_violation():
    crash()


def test_crash_abort():
    os.abort()


def test_crash_exit_code():
    os._exit(7)


def test_crash_exit_with_zero():
    os._exit(0)


def test_crash_stack_overflow():
    if sys.platform == "win32":
        faulthandler._raise_exception(0xC00000FD)
    faulthandler._stack_overflow()


def test_crash_in_thread():
    thread = threading.Thread(target=crash, name="stepper")
    thread.start()
    thread.join()


@pytest.mark.rl_isolated
def test_crash_at_exit():
    atexit.register(os.abort)


@pytest.mark.rl_isolated
def test_crash_in_garbage_collection():
    class Node:
        def __del__(self):
            crash()

    node = Node()
    node.itself = node


@pytest.fixture
def bad_setup():
    crash()


@pytest.fixture
def bad_teardown():
    yield
    crash()


def test_crash_in_setup(bad_setup):
    pass


def test_crash_in_teardown(bad_teardown):
    pass


def test_crash_of_worker():
    worker = multiprocessing.Process(target=crash)
    worker.start()
    worker.join()
    assert worker.exitcode == 0


def test_crash_in_stage(rl_stage):
    with rl_stage("create model"):
        pass
    with rl_stage("learn"):
        crash()


@pytest.mark.rl_isolated(memory="300MiB")
def test_crash_memory_cap():
    blocks = []
    while True:
        blocks.append(b"x" * (8 << 20))


def test_fail_plain():
    assert [1, 2] == [1, 3]


def test_fail_caught_exit():
    sys.exit(3)


def test_fail_subprocess_code():
    subprocess.run([sys.executable, "-c", "raise SystemExit(4)"], check=True)


# Stalls


def test_stall_lock_cycle(rl_locks):
    first, second = threading.Lock(), threading.Lock()
    barrier = threading.Barrier(2)

    def other():
        with second:
            barrier.wait()
            with first:
                pass

    thread = threading.Thread(target=other, name="other")
    thread.start()
    with first:
        barrier.wait()
        with second:
            pass


def test_stall_lock_twice():
    lock = threading.Lock()
    with lock, lock:
        pass


def test_stall_join():
    thread = threading.Thread(target=threading.Event().wait, name="waiter")
    thread.start()
    thread.join()


def test_stall_queue():
    queue.Queue().get()


def test_stall_socket_read():
    left, right = socket.socketpair()
    with left, right:
        left.recv(1)


def test_stall_asyncio():
    asyncio.run(asyncio.wait_for(_never(), None))


async def _never():
    await asyncio.get_running_loop().create_future()


def test_stall_child_process():
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        process.wait()


@pytest.mark.rl_no_stall(after="2s")
def test_stall_no_beats(rl_heartbeat):
    rl_heartbeat()
    while True:
        time.sleep(0.01)


@pytest.mark.timeout(8, method="thread")
def test_stall_busy_loop():
    while True:
        pass


def test_stall_beside_ticking_thread():
    def tick():
        while True:
            time.sleep(0.1)

    threading.Thread(target=tick, daemon=True).start()
    threading.Event().wait()


def test_ok_long_sleep():
    time.sleep(8)


def test_ok_timed_wait():
    assert not threading.Event().wait(8)


def test_ok_waits_for_sleeping_thread():
    thread = threading.Thread(target=time.sleep, args=(8,))
    thread.start()
    thread.join()


def test_ok_computes():
    end, total = time.monotonic() + 8, 0
    while time.monotonic() < end:
        total += sum(range(1000))


def test_ok_many_short_sleeps():
    for _ in range(80):
        time.sleep(0.1)


def test_ok_child_computes():
    code = "import time; end = time.monotonic() + 7\nwhile time.monotonic() < end: pass"
    subprocess.run([sys.executable, "-c", code], check=True)


# Leaks


@pytest.mark.rl_no_leak
def test_leak_list(rl_laps):
    for _ in rl_laps:
        KEPT.append(bytearray(4096))


@pytest.mark.rl_no_leak
def test_leak_threads(rl_laps):
    stop = threading.Event()
    for _ in rl_laps:
        threading.Thread(target=stop.wait, daemon=True).start()


@pytest.mark.rl_no_leak
def test_leak_files(rl_laps, tmp_path):
    for lap in rl_laps:
        KEPT.append((tmp_path / f"{lap}").open("w"))


@pytest.mark.rl_no_leak
def test_leak_whole_test():
    KEPT.append([object() for _ in range(200)])


@pytest.mark.rl_no_leak
def test_ok_ring(rl_laps):
    ring = [None] * 64
    for lap in rl_laps:
        ring[lap % 64] = bytearray(4096)


@pytest.mark.rl_no_leak
def test_ok_closed_files(rl_laps):
    for _ in rl_laps:
        with tempfile.TemporaryFile() as file:
            file.write(b"x" * 10000)


@pytest.mark.rl_no_leak
def test_ok_joined_threads(rl_laps):
    for _ in rl_laps:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()


# The rest


@pytest.mark.rl_flaky(pass_rate=0.9, max_runs=20)
def test_flaky_half(tmp_path_factory):
    assert os.urandom(1)[0] < 128


@pytest.mark.rl_flaky(pass_rate=0.5, max_runs=20)
def test_ok_steady():
    pass


def test_ok_leaves_child_running():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


@pytest.mark.rl_isolated(memory="300MiB")
def test_ok_below_cap():
    assert len(b"x" * (64 << 20))


def test_ok_survives_worker_crash():
    worker = multiprocessing.Process(target=crash)
    worker.start()
    worker.join()
    assert worker.exitcode != 0


def test_ok_writes_unencodable(capfd):
    sys.stdout.buffer.write("★ 好\n".encode())
    sys.stdout.flush()


def test_fail_unencodable_text():
    print("★ 好")
    assert "★" == "好"


@pytest.mark.skip(reason="not today")
def test_skip():
    pass


@pytest.mark.xfail
def test_xfail():
    raise ValueError

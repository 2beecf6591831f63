"""Tests that take their time and must never be called a stall. Run by
tests/session/test_stall_corpus.py, and again and again by benchmarks/stall_innocents.py."""

import asyncio
import mmap
import multiprocessing
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time

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
    code = f"import time; e = time.time() + {LONG}\nwhile time.time() < e: pass"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_waiting_for_an_orphan_that_works():
    code = f"import time; e = time.time() + {LONG}\nwhile time.time() < e: pass"
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


def test_an_alarm_of_its_own_that_goes_off_again_and_again():
    done, alarms = threading.Event(), []

    def ring(*_):
        alarms.append(1)
        if len(alarms) == 2:
            done.set()

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 3.5)
    done.wait()


def test_a_gate_that_another_thread_opens(rl_locks):
    gate = threading.Lock()
    gate.acquire()
    threading.Thread(target=lambda: (time.sleep(3.5), gate.release())).start()
    gate.acquire()


def test_sleeping_less_than_the_limit():
    time.sleep(3)


@pytest.fixture
def long_setup():
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        compile("x = 1\n" * 500, "x", "exec")


def test_long_setup(long_setup):
    pass


@pytest.mark.rl_no_stall(after=0)
def test_watch_off():
    released = threading.Lock()
    released.acquire()
    threading.Timer(5, released.release).start()
    released.acquire()


def test_zombies_and_churn():
    subprocess.Popen(["true"])
    for _ in range(20):
        subprocess.run(["sleep", "0.3"])


def test_native_computing():
    numpy = pytest.importorskip("numpy")
    matrix = numpy.random.rand(400, 400)
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        numpy.linalg.svd(matrix)


def test_native_computing_that_holds_the_gil():
    pattern = re.compile("(a+)+b")
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        pattern.match("a" * 24)


def test_waiting_for_the_disk(tmp_path):
    end = time.monotonic() + LONG
    with open(tmp_path / "file", "wb") as file:
        while time.monotonic() < end:
            file.seek(0)
            file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())


def test_more_memory_than_there_is_room_for(rl_laps):
    """Pages that come and go, as on a machine that swaps."""
    memory = mmap.mmap(-1, 64 << 20)
    end = time.monotonic() + LONG
    for _ in rl_laps:
        for page in range(0, len(memory), mmap.PAGESIZE):
            memory[page] = 1
        memory.madvise(mmap.MADV_DONTNEED)
        if time.monotonic() > end:
            break


def test_slow_client_of_a_slow_server():
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        connection, _ = server.accept()
        for _ in range(12):
            time.sleep(0.5)
            connection.sendall(b"frame")
        connection.close()

    threading.Thread(target=serve, daemon=True).start()
    with socket.create_connection(server.getsockname()) as client:
        while client.recv(1024):
            pass


def test_asyncio_that_waits_in_small_steps():
    async def steps():
        for _ in range(12):
            await asyncio.sleep(0.5)

    asyncio.run(steps())


def test_training_that_beats(rl_heartbeat, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    from pytest_rlstability.integrations import HeartbeatCallback

    model = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=1)
    model.set_logger(stable_baselines3.common.logger.Logger(None, []))  # the usual one leaves a directory a run
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        model.learn(64, callback=HeartbeatCallback(rl_heartbeat))


@pytest.mark.timeout(60)
def test_an_alarm_of_its_own_under_a_timeout():
    done = threading.Event()
    signal.signal(signal.SIGALRM, lambda *_: done.set())
    signal.setitimer(signal.ITIMER_REAL, 3.5)
    done.wait()


def test_a_server_that_left_home():
    """Started by a shell that has ended, in a session of its own."""
    code = f"""
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
client, _ = server.accept()
end = time.monotonic() + {LONG}
while time.monotonic() < end:
    pass
client.sendall(b"done")
"""
    shell = ["sh", "-c", 'setsid "$0" -c "$1" &', sys.executable, code]
    started = subprocess.Popen(shell, stdout=subprocess.PIPE, text=True)
    with socket.create_connection(("127.0.0.1", int(started.stdout.readline()))) as client:
        assert client.recv(4) == b"done"


def test_a_thread_that_ends_after_the_test():
    def poll():
        for _ in range(12):
            time.sleep(0.5)

    threading.Thread(target=poll).start()


def test_sleeping_longer_than_the_limit():
    time.sleep(LONG)


def test_sleeping_again_and_again():
    for _ in range(4):
        time.sleep(LONG / 2)


def test_a_lock_with_a_timeout():
    threading.Event().wait(LONG)


def test_a_child_that_sleeps():
    subprocess.run(["sleep", str(LONG)], check=True)


def test_a_pipe_of_a_child_that_sleeps():
    subprocess.run([sys.executable, "-c", f"import time; time.sleep({LONG})"], stdout=subprocess.PIPE, check=True)


def test_a_socket_with_a_timeout():
    server = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(server.getsockname(), timeout=LONG) as client, pytest.raises(TimeoutError):
        client.recv(1)


def test_a_thread_that_polls_slowly():
    def poll():
        for _ in range(3):
            time.sleep(2.5)

    thread = threading.Thread(target=poll)
    thread.start()
    thread.join()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGRTMIN"])
def test_a_signal_that_another_process_sends(name):
    number, done = getattr(signal, name), threading.Event()
    signal.signal(number, lambda *_: done.set())
    sender = f"sleep 3.8; kill -{int(number)} {os.getpid()}"
    subprocess.Popen(["setsid", "sh", "-c", sender], start_new_session=True)
    done.wait()


def test_a_lock_cycle_that_an_alarm_breaks(rl_locks):
    """The handler raises, as a time limit of the user's own does."""

    class TooLongError(Exception):
        pass

    def give_up(*_):
        raise TooLongError

    one, other = threading.Lock(), threading.Lock()
    barrier = threading.Barrier(2)

    def take_both(first, second):
        with first:
            barrier.wait()
            with second:
                pass

    thread = threading.Thread(target=take_both, args=(one, other), daemon=True)
    thread.start()
    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 3.8)
    with pytest.raises(TooLongError):
        take_both(other, one)
    thread.join()


def test_joining_a_thread_that_sleeps():
    thread = threading.Thread(target=time.sleep, args=(LONG,))
    thread.start()
    thread.join()


def test_an_event_loop_that_waits_for_a_thread():
    asyncio.run(asyncio.to_thread(time.sleep, LONG))


def hold(lock, held):
    with lock:
        held.set()
        time.sleep(LONG)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_lock_that_a_sleeping_worker_holds(method):
    context = multiprocessing.get_context(method)
    lock, held = context.Lock(), context.Event()
    worker = context.Process(target=hold, args=(lock, held))
    worker.start()
    held.wait()
    with lock:
        pass
    worker.join()


def test_a_database_that_is_locked_for_a_while(tmp_path):
    holder = sqlite3.connect(tmp_path / "replay.db", isolation_level=None, check_same_thread=False)
    holder.execute("create table steps(reward)")
    holder.execute("begin exclusive")
    threading.Timer(LONG, holder.commit).start()
    sqlite3.connect(tmp_path / "replay.db", timeout=60).execute("insert into steps values (1)")


@pytest.mark.rl_no_stall(after="30 s")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGRTMIN + 3])
def test_parked_until_a_signal_of_an_orphan(number):
    done = threading.Event()
    signal.signal(number, lambda *_: done.set())
    subprocess.run(["setsid", "-f", "sh", "-c", f"sleep 4; kill -{int(number)} {os.getpid()}"], check=True)
    done.wait()

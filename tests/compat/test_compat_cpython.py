"""Each private part of CPython that is touched, and what it is expected to do."""

from __future__ import annotations

import argparse
import asyncio
import functools
import multiprocessing
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
import warnings
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlstability.compat import cpython as compat

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")


def run(source: str) -> list[str]:
    """The lines that a fresh interpreter writes."""
    head = "from pytest_rlstability.compat.cpython import *\n"
    return subprocess.check_output([sys.executable, "-c", head + textwrap.dedent(source)], text=True).splitlines()


# The end of the interpreter


@needs_fork
def test_drop_exit_callbacks() -> None:
    lines = run(
        """
        import atexit, multiprocessing, os, time, weakref

        class Thing: pass
        before, after = Thing(), Thing()
        say = lambda *words: print(*words, flush=True)

        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0.5,))
        child.start()
        atexit.register(say, "inherited callback")
        weakref.finalize(before, say, "inherited finalizer")
        if (pid := os.fork()) == 0:
            drop_exit_callbacks()
            atexit.register(say, "own callback")
            weakref.finalize(after, say, "own finalizer")
            assert not multiprocessing.active_children()
            raise SystemExit
        os.waitpid(pid, 0)
        say("parent")
        """
    )
    own, parents = lines[: lines.index("parent")], lines[lines.index("parent") + 1 :]
    assert sorted(own) == ["own callback", "own finalizer"]
    assert sorted(parents) == ["inherited callback", "inherited finalizer"]


def test_exit_steps() -> None:
    """``join_threads`` waits for threads that are not daemons, ``run_exit_callbacks`` calls each callback once."""
    lines = run(
        """
        import atexit, threading, time
        atexit.register(print, "callback", flush=True)
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread", flush=True))).start()
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        join_threads()
        print("joined", flush=True)
        run_exit_callbacks()
        print("end", flush=True)
        """
    )
    assert lines == ["thread", "joined", "callback", "end"]


def test_exit_callbacks() -> None:
    lines = run(
        """
        import atexit
        before = exit_callbacks()
        atexit.register(int)
        print(exit_callbacks() - before)
        """
    )
    assert lines == ["1"]


def test_signal_handlers() -> None:
    handlers = compat.signal_handlers()
    assert handlers == {number: signal.getsignal(number) for number in signal.Signals}


def test_raw_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(compat.raw_environment())
    monkeypatch.setenv("RL_COMPAT", "1")
    assert compat.raw_environment() != before
    monkeypatch.undo()
    assert compat.raw_environment() == before


# Threads


def test_on_thread_start() -> None:
    lines = run(
        """
        import threading
        def report(thread):
            print("started", thread.name, thread.ident == threading.get_ident(), thread.native_id)
            raise RuntimeError
        on_thread_start(report)
        thread = threading.Thread(target=print, args=("runs",), name="mine")
        thread.start()
        thread.join()
        """
    )
    assert lines[0].startswith("started mine True ")
    assert int(lines[0].split()[-1]) > 0
    assert lines[1:] == ["runs"]


def test_running_thread() -> None:
    assert compat.running_thread(threading.get_ident()) is threading.current_thread()
    assert compat.running_thread(-1) is None
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        assert compat.running_thread(threading.get_ident()) is threading.current_thread()


def test_thread_target() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert compat.thread_target(thread) == done.wait
    done.set()
    thread.join()
    assert compat.thread_target(thread) is None


def test_thread_start() -> None:
    """``THREAD_START`` names the two outermost functions of a thread."""
    names: list[str] = []

    def note() -> None:
        frame = sys._getframe()
        while frame is not None:
            names.append(frame.f_code.co_name)
            frame = frame.f_back  # type: ignore[assignment]

    thread = threading.Thread(target=note)
    thread.start()
    thread.join()
    assert tuple(reversed(names))[:2] == compat.THREAD_START


# Locks


def elsewhere(call: Any) -> Any:
    """What *call* returns in another thread."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


def test_rlock() -> None:
    """``ownership``, ``is_held_again``, ``release_all`` and ``free_after_fork`` of an ``RLock``."""
    lock = threading.RLock()
    is_mine = compat.ownership(lock)
    assert not is_mine()
    with lock:
        assert is_mine()
        assert not elsewhere(is_mine)
        assert not compat.is_held_again(lock)
        with lock:
            assert compat.is_held_again(lock)
            state = compat.release_all(lock)
            assert state[0] == 2
            assert not is_mine()
            assert elsewhere(lambda: lock.acquire(False) and not lock.release())
            assert lock.acquire()
            assert lock.acquire()
        assert is_mine()
    assert not is_mine()
    lock.acquire()
    compat.free_after_fork(lock)
    assert not is_mine()


def test_free_after_fork() -> None:
    lock = threading.Lock()
    lock.acquire()
    compat.free_after_fork(lock)
    assert lock.acquire(False)


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_blocking_condition(make: Any) -> None:
    waits: list[float] = []

    class Noting(compat.BlockingCondition):
        def block(self, acquire: Any, timeout: float) -> bool:
            waits.append(timeout)
            return super().block(acquire, timeout)

    condition = Noting(make())
    with condition:
        thread = threading.Thread(target=notify, args=(condition,))
        thread.start()
        assert condition.wait(20)
        thread.join()
        assert not condition.wait(0.01)
        assert not condition.wait(0)
        condition.notify()  # of a waiter that has given up: nobody is left
        assert not condition.wait(0.01)
    assert waits == [20, 0.01, 0.01]
    with pytest.raises(RuntimeError):
        condition.wait()


def notify(condition: threading.Condition) -> None:
    with condition:
        condition.notify()


def test_lock_of() -> None:
    lock = threading.RLock()
    assert compat.lock_of(threading.Condition(lock)) is lock


# Processes


@needs_fork
def test_started_processes() -> None:
    context = multiprocessing.get_context("fork")
    killed, waiting = context.Process(target=signal.pause), context.Process(target=signal.pause)
    never_started = context.Process(target=signal.pause)
    try:
        for process in (killed, waiting):
            process.start()
        os.kill(killed.pid, signal.SIGKILL)  # type: ignore[arg-type]
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # type: ignore[arg-type]
        found = dict(compat.started_processes())
        assert found[killed].poll() == -signal.SIGKILL
        assert found[waiting].poll() is None
        assert never_started not in found
        of_parent = context.Process(target=lambda: os._exit(len(list(compat.started_processes()))))
        of_parent.start()
        of_parent.join()
        assert of_parent.exitcode == 0, "those that its parent started are not its own"
    finally:
        for process in (killed, waiting):
            process.kill()
            process.join()


@needs_fork
def test_popen_of() -> None:
    process = multiprocessing.get_context("fork").Process(target=int)
    assert compat.popen_of(process) is None
    process.start()
    assert compat.popen_of(process).pid == process.pid
    process.join()


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_process_starters(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    polled: list[int] = []
    for starter in compat.process_starters():

        def poll(popen: Any, *arguments: Any, original: Any = starter.poll) -> Any:
            polled.append(popen.pid)
            return original(popen, *arguments)

        monkeypatch.setattr(starter, "poll", poll)
    process: Any = multiprocessing.get_context(method).Process(target=int)
    process.start()
    assert process.is_alive() or process.exitcode == 0
    assert process.pid in polled
    process.join()


def test_tasks_awaited_by() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    async def outer(*inner: asyncio.Task[None]) -> None:
        await (inner[0] if len(inner) == 1 else asyncio.gather(*inner))

    async def main() -> None:
        one, two = asyncio.create_task(forever()), asyncio.create_task(forever())
        tasks = [one, asyncio.create_task(outer(one)), asyncio.create_task(outer(one, two))]
        for _ in range(3):
            await asyncio.sleep(0)
        assert [compat.tasks_awaited_by(task) for task in tasks] == [[], [one], [one, two]]
        for task in (*tasks, two):
            task.cancel()

    asyncio.run(main())


@pytest.mark.skipif(sys.platform == "win32", reason="pipes are other objects there")
def test_own_read_and_write() -> None:
    calls: list[str] = []

    class Noting(compat.OwnReadAndWrite, Connection):
        def read_some(self, handle: int, size: int) -> bytes:
            calls.append("read")
            return os.read(handle, size)

        def write_some(self, handle: int, data: bytes) -> int:
            calls.append("write")
            return os.write(handle, data)

    one, other = multiprocessing.Pipe()
    noting = Noting(os.dup(one.fileno()))
    noting.send({"a": 1})
    assert other.recv() == {"a": 1}
    other.send([2])
    assert noting.recv() == [2]
    assert set(calls) == {"read", "write"}
    for connection in (one, other, noting):
        connection.close()


# Memory and warnings


class Thing:
    """With a ``__dict__``."""


@pytest.mark.parametrize("make", [Thing, dict])
def test_traceback_of(make: Any) -> None:
    tracemalloc.start(4)
    try:
        thing = make()
        traceback = compat.traceback_of(thing)
    finally:
        tracemalloc.stop()
    assert traceback is not None
    assert __file__ in [frame.filename for frame in traceback]


def test_recorded_warnings() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warnings.warn("this", stacklevel=1)
        kept = compat.recorded_warnings()
        assert kept is told
        assert [str(warning.message) for warning in kept] == ["this"]
    with warnings.catch_warnings():
        assert compat.recorded_warnings() is not told


# Pickles and queues


def test_modern_name() -> None:
    assert compat.modern_name("__builtin__", "xrange") == ("builtins", "range")
    assert compat.modern_name("Queue", "Queue") == ("queue", "Queue")
    assert compat.modern_name("game", "Agent") == ("game", "Agent")
    assert pickle.loads(b"c__builtin__\nxrange\n.") is range


def test_queue_methods() -> None:
    """``QUEUE_PUT`` and ``QUEUE_GET``."""
    calls = []

    class Noting(queue.Queue[int]):
        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name in (compat.QUEUE_PUT, compat.QUEUE_GET):
                return functools.partial(noted, name, self.mutex, found)
            return found

    def noted(name: str, mutex: Any, call: Any, *arguments: Any) -> Any:
        calls.append((name, mutex.locked()))
        return call(*arguments)

    noting = Noting()
    noting.put(7)
    assert noting.get() == 7
    assert calls == [(compat.QUEUE_PUT, True), (compat.QUEUE_GET, True)]


def test_accept_descriptor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        with socket.socket(fileno=compat.accept_descriptor(server)) as accepted:
            client.sendall(b"hello")
            assert accepted.recv(5) == b"hello"


def test_module_of_thread() -> None:
    class Own(threading.Thread):
        def run(self) -> None:
            time.sleep(0.2)

    function, method = threading.Thread(target=time.sleep, args=(0.2,)), Own()
    for thread in (function, method):
        thread.start()
    assert compat.module_of_thread(function) == "time"
    assert compat.module_of_thread(method) == __name__
    for thread in (function, method):
        thread.join()


def test_numba_has_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not compat.numba_has_threads()
    monkeypatch.setitem(sys.modules, "numba.np.ufunc.parallel", SimpleNamespace(_is_initialized=True))  # type: ignore[arg-type]
    assert compat.numba_has_threads()


def test_force_start_method() -> None:
    program = """
import multiprocessing
from pytest_rlstability.compat.cpython import force_start_method
force_start_method("spawn")
multiprocessing.set_start_method("fork", force=True)
print(multiprocessing.get_start_method(), multiprocessing.get_context("fork").Process.__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["spawn", "SpawnProcess"]


@pytest.mark.parametrize("method", ["spawn"] if sys.platform == "win32" else ["spawn", "forkserver"])
def test_code_that_workers_run_first(method: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from multiprocessing import spawn

    monkeypatch.setattr(spawn, "get_preparation_data", spawn.get_preparation_data)
    for name in ("a", "b"):
        compat.run_in_workers(f"open({str(tmp_path / name)!r}, 'w').close()", lambda name=name: name in wanted)
    for wanted in ("", "b", "ab"):
        worker = multiprocessing.get_context(method).Process(target=int)
        worker.start()
        worker.join()
        assert worker.exitcode == 0
        assert "".join(sorted(path.name for path in tmp_path.iterdir())) == wanted


def test_mimalloc_bytes() -> None:
    """Only where Python is told to use it, or has no GIL."""
    code = (
        "from pytest_rlstability.compat import cpython\n"
        "before = cpython.mimalloc_bytes(); kept = bytearray(10**6)\n"
        "print(cpython.uses_mimalloc(), None if before is None else cpython.mimalloc_bytes() - before)"
    )
    for allocator, expected in (("pymalloc", ["False", "None"]), ("mimalloc", ["True", "1"])):
        environment = {**os.environ, "PYTHONMALLOC": allocator}
        result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        if result.returncode and "unknown" in result.stderr and "PYTHONMALLOC" in result.stderr:
            pytest.skip(f"this Python has no {allocator}")
        uses, grown = result.stdout.split()
        assert uses == expected[0], result.stderr
        assert grown == "None" if expected[1] == "None" else 10**6 <= int(grown) < 2 * 10**6


def test_arguments_and_commands() -> None:
    parser = argparse.ArgumentParser(prog="it")
    command = parser.add_subparsers().add_parser("walk", help="goes")
    command.add_argument("--fast")
    assert [one.option_strings for one in compat.arguments_of(command)] == [["-h", "--help"], ["--fast"]]
    assert compat.commands_of(parser) == {"walk": ("goes", command)}

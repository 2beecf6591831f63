"""What a thread waits for is named: a locked database, a lock of multiprocessing, what poll watches; and by whom."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_rlstability.osinfo.linux import ended_by, polled_by
from pytest_rlstability.osinfo.peers import describe_databases, describe_wait
from pytest_rlstability.osinfo.processes import is_helper
from pytest_rlstability.osinfo.threads import look_at_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(sys.argv[2])
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has written its first line, until the end of the block."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", *arguments], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def words_of(pid: int, expected: str) -> str:
    """What the first thread of *pid* waits for, once that has the *expected* words in it."""
    for _ in range(1000):
        words = describe_wait(look_at_process(pid)[0], [pid])
        if expected in words:
            break
        time.sleep(0.01)
    return words


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_locked_database_is_named_with_who_holds_it(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "replay.db"
    own = sqlite3.connect(path, isolation_level=None)
    own.execute(f"pragma journal_mode={journal}")
    own.execute("create table steps(reward)")
    own.execute("select count(*) from steps").fetchone()
    assert describe_databases(os.getpid(), [os.getpid()]) == []
    with running(HOLDER, str(path), "begin immediate") as holder:
        (line,) = describe_databases(os.getpid(), [os.getpid()])
        assert line.startswith(f"the SQLite database {path} is locked by pid {holder.pid} (")
    own.execute("begin immediate")
    (line,) = describe_databases(os.getpid(), [os.getpid()])
    assert line == f"the SQLite database {path} is locked by another connection of this process"
    own.close()


def test_a_file_that_is_locked_and_no_database_is_not_named(tmp_path: Path) -> None:
    import fcntl

    with open(tmp_path / "model.db", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert describe_databases(os.getpid(), [os.getpid()]) == []


def test_what_poll_watches_is_named_with_the_process_at_its_other_end() -> None:
    reader, writer = os.pipe()
    program = f"import select; p = select.poll(); p.register({reader}, 1); print(); p.poll()"
    with subprocess.Popen([sys.executable, "-c", program], pass_fds=[reader], stdout=subprocess.DEVNULL) as process:
        try:
            words = words_of(process.pid, "waits for input or output on pipe:")
            assert f"at whose other end is pid {os.getpid()} (" in words
            assert polled_by(process.pid, process.pid) == [reader]
        finally:
            process.kill()
            os.close(reader)
            os.close(writer)


def wait_for(lock: Any) -> None:
    lock.acquire()


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_lock_of_multiprocessing_and_a_worker_are_known(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    lock = context.Lock()
    worker = context.Process(target=wait_for, args=(lock,))
    with lock:
        worker.start()
        assert (
            words_of(worker.pid, "processes share") == "waits for a lock that processes share, as multiprocessing's are"
        )
        assert not is_helper(worker.pid)
    worker.join()


@pytest.mark.parametrize(("end", "number"), [(lambda: os.kill(os.getpid(), 9), 9), (lambda: os._exit(3), 0)])
def test_the_signal_that_ended_a_process(end: Callable[[], None], number: int) -> None:
    pid = os.fork()
    if pid == 0:
        end()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended_by(pid) == number
    os.waitpid(pid, 0)
    assert ended_by(os.getpid()) == 0

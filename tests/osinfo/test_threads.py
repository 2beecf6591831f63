"""Looking at a tree again: threads that still sleep are not read, those that ran, stopped or ended are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pytest_rlstability.osinfo import linux
from pytest_rlstability.osinfo.threads import TreeState, look_at_tree

PROGRAM = """
import sys, threading
stop = threading.Event()
for _ in range(3):
    threading.Thread(target=stop.wait, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    print("heard", flush=True)
"""

os_read = linux.read_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def settled(pid: int, before: TreeState | None = None) -> TreeState:
    """Two looks alike: everything sleeps."""
    for _ in range(500):
        tree = look_at_tree(pid, [pid], before)
        time.sleep(0.01)
        if look_at_tree(pid, [pid]).activity == tree.activity and all(thread.asleep for thread in tree.threads):
            return tree
    raise AssertionError("it never settled")


def test_sleeping_threads_are_not_read_again(sleeper, monkeypatch):
    before = settled(sleeper.pid)
    read: list[str] = []
    monkeypatch.setattr(linux, "read_file", lambda path: read.append(path) or os_read(path))
    again = look_at_tree(sleeper.pid, [sleeper.pid], before)
    assert len(again.threads) == 4
    assert again == before
    assert {path.rpartition("/")[2] for path in read} == {"schedstat"}


def test_a_thread_that_has_run_is_read_again(sleeper):
    before = settled(sleeper.pid)
    sleeper.stdin.write("go on\n")
    sleeper.stdin.flush()
    sleeper.stdout.readline()
    after = settled(sleeper.pid, before)
    moved = after.activity - before.activity
    assert [mark[1] for mark in moved] == [sleeper.pid]
    assert after == look_at_tree(sleeper.pid, [sleeper.pid])


def test_a_stopped_process_is_seen_to_be_stopped(sleeper):
    before = settled(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGSTOP)
    os.waitpid(sleeper.pid, os.WUNTRACED)
    assert {thread.state for thread in look_at_tree(sleeper.pid, [sleeper.pid], before).threads} == {"T"}


@pytest.mark.parametrize("counted", [b"0 0 0\n", None], ids=["kernel counts nothing", "kernel has no such file"])
def test_without_the_kernels_counts_everything_is_read(sleeper, monkeypatch, counted):
    def read(path: str) -> bytes:
        if path.endswith("schedstat"):
            if counted is None:
                raise FileNotFoundError(path)
            return counted
        return os_read(path)

    monkeypatch.setattr(linux, "read_file", read)
    before = settled(sleeper.pid)
    sleeper.stdin.write("go on\n")
    sleeper.stdin.flush()
    sleeper.stdout.readline()
    assert look_at_tree(sleeper.pid, [sleeper.pid], before).activity != before.activity

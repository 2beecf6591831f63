"""What a thread waits for, by the stack that faulthandler writes of it: real waits, on every system."""

from __future__ import annotations

import faulthandler
import multiprocessing
import queue
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_rlstability.model.stack_dump import parse_dump
from pytest_rlstability.osinfo.stack_waits import CHILD, INPUT, LOCK, UNKNOWN, wait_of

LONG = 600


def take_twice() -> None:
    lock = threading.Lock()
    with lock, lock:
        pass


def acquire_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def get_of_simple_queue() -> None:
    queue.SimpleQueue().get()


def sleeper() -> threading.Thread:
    thread = threading.Thread(target=time.sleep, args=(LONG,), daemon=True)
    thread.start()
    return thread


def receive() -> None:
    left, right = socket.socketpair()
    with right:
        left.recv(1)


def read_line() -> None:
    left, right = socket.socketpair()
    with right:
        left.makefile().readline()


def select() -> None:
    left, right = socket.socketpair()
    with right, selectors.DefaultSelector() as selector:
        selector.register(left, selectors.EVENT_READ)
        selector.select()


def wait_for_message() -> None:
    ours, theirs = multiprocessing.Pipe()
    with theirs:
        ours.recv()


WAITS: dict[str, tuple[Callable[[], object], tuple[str, bool]]] = {
    "with": (take_twice, (LOCK, True)),
    "acquire": (acquire_twice, (LOCK, True)),
    "event": (lambda: threading.Event().wait(), (LOCK, True)),
    "event with timeout": (lambda: threading.Event().wait(LONG), (LOCK, False)),
    "queue": (lambda: queue.Queue().get(), (LOCK, True)),
    "queue with timeout": (lambda: queue.Queue().get(timeout=LONG), (LOCK, False)),
    "simple queue": (get_of_simple_queue, (LOCK, True)),
    "join": (lambda: sleeper().join(), (LOCK, True)),
    "join with timeout": (lambda: sleeper().join(LONG), (LOCK, False)),
    "socket": (receive, (INPUT, False)),
    "file of a socket": (read_line, (INPUT, False)),
    "selector": (select, (INPUT, False)),
    "pipe": (wait_for_message, (INPUT, False)),
    "sleep": (lambda: time.sleep(LONG), (UNKNOWN, False)),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_is_recognised(name: str, tmp_path: Path) -> None:
    wait, expected = WAITS[name]
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waits_as(thread, tmp_path, expected) == expected


def test_a_wait_for_a_child_is_recognised(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        thread = threading.Thread(target=child.wait)
        thread.start()
        found = waits_as(thread, tmp_path, (CHILD, False))
        child.kill()
        thread.join()
    assert found == (CHILD, False)


def waits_as(thread: threading.Thread, tmp_path: Path, expected: tuple[str, bool]) -> tuple[str, bool]:
    """What the stack of *thread* shows, once it is as *expected* or some time has passed."""
    deadline = time.monotonic() + 10
    while (found := _look(thread, tmp_path)) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _look(thread: threading.Thread, tmp_path: Path) -> tuple[str, bool]:
    path = tmp_path / "stacks"
    with path.open("w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    stacks = {stack.ident: stack for stack in parse_dump(path.read_text()).threads}
    return wait_of(stacks[thread.ident or 0].frames)

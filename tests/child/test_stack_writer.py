"""A process that writes its own stacks, while it computes, waits, or keeps the GIL in native code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_rlstability.osinfo.timed_stacks import last_stacks, stacks_by_thread

BEFORE = """
import ctypes, sys, threading, time
from pathlib import Path
from pytest_rlstability.child.stack_writer import StackWriter
from pytest_rlstability.osinfo.timed_stacks import last_stacks

path = Path(sys.argv[1])
writer = StackWriter(path)
"""


def run(path: Path, source: str) -> None:
    """In a process of its own, because faulthandler is one for all."""
    subprocess.run([sys.executable, "-c", BEFORE + source, str(path)], check=True, timeout=60)


def test_a_thread_that_computes_is_shown(tmp_path: Path) -> None:
    source = "def compute():\n    while 'compute' not in last_stacks(path): pass\nwriter.every(0.05)\ncompute()"
    run(tmp_path / "stacks", source)


def test_every_thread_but_the_writer_is_shown(tmp_path: Path) -> None:
    source = """
def wait_here(): threading.Event().wait()
threading.Thread(target=wait_here, daemon=True).start()
writer.every(0.05)
while "wait_here" not in last_stacks(path): time.sleep(0.01)
"""
    run(tmp_path / "stacks", source)
    stacks = stacks_by_thread(last_stacks(tmp_path / "stacks"))
    assert len(stacks) == 2
    assert "stack_writer" not in "".join(stacks.values())


def test_native_code_that_keeps_the_gil_is_shown(tmp_path: Path) -> None:
    """The writer cannot run then; faulthandler's watchdog can."""
    sleep = 'ctypes.PyDLL("kernel32").Sleep(2000)' if sys.platform == "win32" else "ctypes.PyDLL(None).sleep(2)"
    source = f"def keep_it():\n    {sleep}\nwriter.every(0.1)\nkeep_it()\nassert 'keep_it' in path.read_text()"
    run(tmp_path / "stacks", source)
    assert "Timeout (0:00:0" in (tmp_path / "stacks").read_text()


def test_the_next_test_begins_with_an_empty_file(tmp_path: Path) -> None:
    source = """
writer.every(0.02)
while not last_stacks(path): time.sleep(0.01)
writer.every(60)
"""
    run(tmp_path / "stacks", source)
    assert (tmp_path / "stacks").read_text() == ""


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    run(tmp_path / "stacks", "writer.every(0.05)\nwriter.every(0)\ntime.sleep(0.3)\nassert path.read_text() == ''")


@pytest.mark.parametrize("end", ["writer.end()", ""])
def test_the_interpreter_ends_without_it(tmp_path: Path, end: str) -> None:
    run(tmp_path / "stacks", f"writer.every(0.01)\ntime.sleep(0.1)\n{end}")


def test_threads_that_run_are_not_disturbed(tmp_path: Path) -> None:
    """faulthandler's watchdog alone crashes this program now and then: it reads frames while they come and go."""
    source = """
def deep(n): return n and deep(n - 1) + sum(x for x in range(3))
def work():
    end = time.monotonic() + 1.5
    while time.monotonic() < end: deep(200)
writer.every(0.0005)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert path.stat().st_size
"""
    run(tmp_path / "stacks", source)

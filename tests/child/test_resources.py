"""What a test leaves behind, in short texts."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from pytest_rlstability.child import resources
from pytest_rlstability.child.resources import ResourceSnapshot

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(autouse=True)
def no_segments_of_others(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/shm is the whole machine's: another xdist worker's segments are not what these tests leave."""
    if request.node.name != "test_shared_memory_is_told_by_its_name":
        monkeypatch.setattr(resources, "SHARED_MEMORY", str(tmp_path))


def test_nothing_left() -> None:
    before = ResourceSnapshot()
    with open(os.devnull):
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
    subprocess.run(["true"], check=True)
    assert before.left_since() == []


def test_a_descriptor_is_told_with_its_target() -> None:
    before = ResourceSnapshot()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    try:
        assert before.left_since() == [f"descriptor {descriptor} -> /dev/null"]
    finally:
        os.close(descriptor)


def test_a_thread_is_told_by_its_name() -> None:
    before, end = ResourceSnapshot(), threading.Event()
    thread = threading.Thread(target=end.wait, name="capture-1")
    thread.start()
    try:
        assert before.left_since() == ["thread capture-1"]
    finally:
        end.set()
        thread.join()


def test_a_process_is_told_by_its_command() -> None:
    before = ResourceSnapshot()
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert before.left_since() == [f"process {process.pid}: sleep 60"]
    finally:
        process.kill()
        process.wait()


def test_shared_memory_is_told_by_its_name() -> None:
    before = ResourceSnapshot()
    segment = shared_memory.SharedMemory(create=True, size=64)
    try:
        assert f"shared memory {segment.name}" in before.left_since()
    finally:
        segment.close()
        segment.unlink()


def test_what_multiprocessing_keeps_for_itself_is_not_left_by_the_test() -> None:
    before = ResourceSnapshot()
    context = multiprocessing.get_context("forkserver")
    worker = context.Process(target=int)
    worker.start()
    worker.join()
    worker.close()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    try:
        assert before.left_since() == [f"descriptor {descriptor} -> /dev/null"]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_is_told_by_its_name(method: str) -> None:
    before, context = ResourceSnapshot(), multiprocessing.get_context(method)
    worker = context.Process(target=time.sleep, args=(60,), name="env-3")
    worker.start()
    try:
        assert f"process {worker.pid}: multiprocessing's worker env-3" in before.left_since()
    finally:
        worker.kill()
        worker.join()
        worker.close()


def test_a_segment_belongs_to_the_test_that_made_it(tmp_path: Path) -> None:
    """The semaphore of a lock of multiprocessing has a name if workers are not forked, and nothing else changes."""
    before = ResourceSnapshot()
    assert before.note_owner("test_a") == []
    (tmp_path / f"sem.mp-{os.getpid()}").write_bytes(b"1")
    (line,) = before.note_owner("test_b")
    assert before.note_owner("test_c") == []
    assert before.left_since() == [f"{line} (since test_b)"]

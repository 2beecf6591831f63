"""Which test a segment in /dev/shm is laid at the door of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from pytest_rlstability.osinfo.shared_memory import own_segments

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SHM = "/dev/shm"


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a segment that does not exist yet; gone afterwards."""
    name = f"rlstability-test-{os.urandom(6).hex()}"
    yield name
    Path(SHM, name).unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)


def beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")


@pytest.fixture
def strangers(name: str) -> Iterator[str]:
    """A segment that a process outside of ours has mapped, as another worker's test would."""
    program = (
        "import os, mmap, sys\n"
        "if os.fork(): os._exit(0)\n"
        f"file = open('{SHM}/{name}', 'w+b'); file.truncate(4096); kept = mmap.mmap(file.fileno(), 4096)\n"
        "print(os.getpid(), flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    process.wait()
    yield name
    process.stdin.close()
    process.stdout.read()  # until it has ended
    process.stdout.close()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_this_process_has_mapped_is_its_own(monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", workers)
    segment = shared_memory.SharedMemory(create=True, size=64)
    try:
        assert own_segments(SHM, {segment.name}) == [segment.name]
    finally:
        segment.close()
        segment.unlink()


def test_what_a_child_holds_open_is_its_own(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    beside_others(monkeypatch)
    with open(f"{SHM}/{name}", "wb") as file:
        process = subprocess.Popen(["sleep", "60"], pass_fds=[file.fileno()])
    try:
        assert own_segments(SHM, {name}) == [name]
    finally:
        process.kill()
        process.wait()


def test_what_another_process_holds_is_not(strangers: str) -> None:
    assert own_segments(SHM, {strangers}) == []


def test_what_no_process_holds_is_reported_only_of_a_test_run_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    Path(SHM, name).touch()
    assert own_segments(SHM, {name}) == [name]
    beside_others(monkeypatch)
    assert own_segments(SHM, {name}) == []


def test_a_name_with_the_pid_tells_whose_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    beside_others(monkeypatch)
    ours, others = f"torch_{os.getpid()}_17_0", f"torch_{os.getpid() + 1}_17_0"
    hash_with_our_digits = f"psm_{os.getpid()}abc"
    for segment in (ours, others, hash_with_our_digits):
        (tmp_path / segment).touch()
    assert own_segments(str(tmp_path), {ours, others, hash_with_our_digits}) == [ours]

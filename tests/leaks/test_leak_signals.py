"""Each signal sees the thing it counts, and reading it leaves nothing behind."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from typing import Any

import pytest

from pytest_rlstability.leaks.signals import memory
from pytest_rlstability.leaks.signals.protocol import Signal
from pytest_rlstability.leaks.signals.registry import Signals, shipped_signals

SHIPPED = Signals(shipped_signals())

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux has all of them")


@pytest.fixture
def signals(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Signal]]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the machine's own is everybody's
    gc.collect()
    opened, missing = SHIPPED.open()
    assert missing == {}
    yield {signal.name: signal for signal in opened}
    for signal in opened:
        signal.close()


def open_descriptor() -> Callable[[], object]:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    return lambda: os.close(descriptor)


def start_thread() -> Callable[[], object]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()

    def stop() -> None:
        end.set()
        thread.join()

    return stop


def start_process() -> Callable[[], object]:
    process = subprocess.Popen(["sleep", "60"])

    def stop() -> None:
        process.kill()
        process.wait()

    return stop


def leave_zombie() -> Callable[[], object]:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process.wait


def make_segment() -> Callable[[], object]:
    segment = shared_memory.SharedMemory(create=True, size=64)

    def remove() -> None:
        segment.close()
        segment.unlink()

    return remove


def make_file() -> Callable[[], object]:
    descriptor, path = tempfile.mkstemp()
    os.close(descriptor)
    return lambda: os.unlink(path)


def map_memory() -> Callable[[], object]:
    return mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close


def map_file() -> Callable[[], object]:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(1 << 16))
        file.flush()
        return mmap.mmap(file.fileno(), 1 << 16, prot=mmap.PROT_READ).close


def keep_bytes() -> Callable[[], object]:
    kept = [bytearray(100_000) for _ in range(50)]
    return kept.clear


def keep_objects() -> Callable[[], object]:
    kept = [[number] for number in range(1000)]
    return kept.clear


@pytest.mark.parametrize(
    ("name", "grow", "least"),
    [
        ("fds", open_descriptor, 1),
        ("threads", start_thread, 1),
        ("processes", start_process, 1),
        ("zombies", leave_zombie, 1),
        ("shm", make_segment, 1),
        ("tempfiles", make_file, 1),
        ("mappings", map_memory, 1 << 20),
        ("mapped_files", map_file, 1),
        ("malloc", keep_bytes, 5_000_000),
        ("python", keep_objects, 900),
        ("objects", keep_objects, 900),
    ],
)
def test_a_signal_sees_what_it_counts(
    signals: dict[str, Signal], name: str, grow: Callable[[], Callable[[], object]], least: float
) -> None:
    signal = signals[name]
    before, known = signal.read(), signal.inventory()
    give_back = grow()
    time.sleep(0.01)  # the signals of one sample share a look through /proc
    try:
        growth, names = signal.read() - before, set(signal.inventory())
        removed = len(set(known) - names) if signal.foreign else 0  # by other processes, meanwhile
        assert growth + removed >= least
        if known or signal.exact:
            assert names - set(known)
    finally:
        give_back()


@pytest.mark.slow
def test_reading_is_not_growth(signals: dict[str, Signal]) -> None:
    def read_all() -> None:
        for signal in signals.values():
            signal.read()

    for _ in range(20):
        read_all()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(200):
        read_all()
    gc.collect()
    assert sys.getallocatedblocks() - before < 60


def test_what_a_worker_opens_is_counted_and_a_new_worker_is_not(signals: dict[str, Signal]) -> None:
    opens = "import sys, os\nfor _ in sys.stdin: os.open(os.devnull, os.O_RDONLY); print(flush=True)"
    signal = signals["worker_fds"]
    assert signal.read() == 0
    worker = subprocess.Popen(
        [sys.executable, "-c", opens], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write("step\n")
        worker.stdout.readline()
        signal.read()
        before, known = signal.read(), set(signal.inventory())
        for _ in range(3):
            worker.stdin.write("step\n")
            worker.stdout.readline()
        time.sleep(0.01)  # the signals of one sample share a look through /proc
        assert signal.read() - before == 3
        fresh = set(signal.inventory()) - known
        assert len(fresh) == 3
        assert all("/dev/null" in name for name in fresh)
    finally:
        worker.communicate()
    time.sleep(0.01)
    assert signal.read() == 0


def test_empty_log_directories_of_sb3_are_a_habit_not_a_leak(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    signal = next(signal for signal in SHIPPED.open(["tempfiles"])[0] if signal.name == "tempfiles")
    os.mkdir(f"{tmp_path}/SB3-2025-01-01")
    assert signal.read() == 0
    os.mkdir(f"{tmp_path}/rollouts")
    assert signal.read() == 1


def test_names_and_groups() -> None:
    assert SHIPPED.expand(["threads", "fds"]) == ("fds", "threads")
    assert {signal.name for signal in SHIPPED} - set(SHIPPED.expand(["memory", "resources"])) == {"rss", "uss"}
    with pytest.raises(ValueError, match="'heap' is not a signal"):
        SHIPPED.expand(["heap"])
    with pytest.raises(ValueError, match="never judged"):
        SHIPPED.expand(["rss"])


GROWING_BYTEARRAY = """
    import pytest
    kept = bytearray()

    @pytest.mark.rl_no_leak
    def test_leak(rl_laps):
        for _ in rl_laps:
            kept.extend(bytes(10_000))

    @pytest.mark.rl_no_leak
    def test_innocent(rl_laps):
        for _ in rl_laps:
            [bytearray(1_000 + 37 * i) for i in range(300)]
"""


def _can_use_mimalloc() -> bool:
    environment = {**os.environ, "PYTHONMALLOC": "mimalloc"}
    return subprocess.run([sys.executable, "-c", ""], env=environment, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not _can_use_mimalloc(), reason="this Python has no mimalloc")
def test_a_growing_bytearray_in_memory_of_mimalloc_is_a_leak(run_pytest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python without a GIL has all objects there. malloc does not count them, and the number of blocks stays."""
    monkeypatch.setenv("PYTHONMALLOC", "mimalloc")
    outcome = run_pytest(GROWING_BYTEARRAY, "--rl-leak-budget=20s")
    assert outcome.tests == {"test_leak": "failed", "test_innocent": "passed"}, outcome.text
    assert outcome.messages["test_leak"].startswith("LEAK: malloc bytes in use grow by ")


def test_memory_of_mimalloc_that_cannot_be_read_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "uses_mimalloc", lambda: True)
    monkeypatch.setattr(memory, "mimalloc_bytes", lambda: None)
    opened, missing = SHIPPED.open(["malloc"])
    for signal in opened:
        signal.close()
    assert missing == {"malloc": "this Python uses mimalloc, and does not say how much of it"}

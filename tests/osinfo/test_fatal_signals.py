"""Names of signals, stacks on demand, and crashes that are held."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_rlstability.osinfo.fatal_signals import (
    FATAL_SIGNALS,
    STACKS_SIGNAL,
    ask_for_stacks,
    signal_name,
    signal_of_exit,
)
from pytest_rlstability.osinfo.threads import held_signal

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_signal_names() -> None:
    assert (signal_of_exit(0), signal_of_exit(3), signal_of_exit(None)) == ("", "", "")
    if sys.platform != "win32":
        assert signal_name(11) == signal_of_exit(-11) == "SIGSEGV"
        assert signal_name(63) == signal_of_exit(-63) == "signal 63"


@linux_only
def test_a_process_is_asked_for_its_stacks(tmp_path: Path) -> None:
    program = f"""
import faulthandler, time
def busy():
    print("ready", flush=True)
    time.sleep(600)
faulthandler.register({STACKS_SIGNAL}, open({str(tmp_path / "stacks")!r}, "w"))
busy()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert "in busy" in ask_for_stacks(process.pid, tmp_path / "stacks", seconds=10)
        finally:
            process.kill()
    began = time.monotonic()
    assert ask_for_stacks(process.pid, tmp_path / "stacks", seconds=10) == ""
    assert ask_for_stacks(process.pid, tmp_path / "stacks", None) == ""
    assert time.monotonic() - began < 5, "an ended process is not waited for"


@linux_only
@pytest.mark.parametrize("number", FATAL_SIGNALS, ids=signal_name)
def test_a_held_crash_says_by_which_signal(number: signal.Signals) -> None:
    program = f"""
import os, threading
from pytest_rlstability.osinfo.fatal_signals import hold_on_fatal_signals
hold_on_fatal_signals()
threading.Thread(target=lambda: os.kill(os.getpid(), {int(number)})).start()
threading.Event().wait()
"""
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            deadline = time.monotonic() + 10
            while held_signal(process.pid) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert held_signal(process.pid) == number
        finally:
            process.kill()


@linux_only
def test_a_process_that_blocks_signals_is_not_held() -> None:
    program = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
print("ready", flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.1)
            assert held_signal(process.pid) is None
        finally:
            process.kill()


def test_exceptions_of_windows_have_names() -> None:
    assert signal_of_exit(0xC0000005) == "access violation"
    assert signal_of_exit(0xC00000FD) == "stack overflow"
    assert signal_of_exit(0xC0000999) == "exception 0xC0000999"
    assert signal_of_exit(255) == ""

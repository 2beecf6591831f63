"""Stacks that a process writes to a file by itself, and what is read of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_rlstability.osinfo import timed_stacks
from pytest_rlstability.osinfo.timed_stacks import crash_in, last_stacks, open_to_append, seconds_between

TIMED = 'Timeout (0:00:01)!\nThread 0x1 (most recent call first):\n  File "{}", line 1 in wait\n'
EXCEPTION = 'Windows fatal exception: access violation\n\nCurrent thread 0x1 (most recent call first):\n  File "{}"\n'
FATAL = 'Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File "{}"\n'
ACCESS_VIOLATION = 0xC0000005


def test_the_last_stacks_count(tmp_path: Path) -> None:
    path = tmp_path / "1.stacks"
    path.write_text(TIMED.format("old.py") + TIMED.format("new.py"))
    assert "new.py" in last_stacks(path)
    assert "old.py" not in last_stacks(path)
    assert "Timeout" not in last_stacks(path)
    assert last_stacks(tmp_path / "none") == ""


def test_an_exception_that_was_survived_is_not_the_crash(tmp_path: Path) -> None:
    path = tmp_path / "1.stacks"
    path.write_text(EXCEPTION.format("handled.py"))
    assert crash_in(path, 3) == b""
    assert crash_in(path, 0) == b""
    path.write_text(EXCEPTION.format("handled.py") + TIMED.format("slow.py") + EXCEPTION.format("fatal.py"))
    assert b"fatal.py" in crash_in(path, ACCESS_VIOLATION)
    assert b"handled.py" not in crash_in(path, ACCESS_VIOLATION)


def test_abort_ends_a_process_of_windows_with_3(tmp_path: Path) -> None:
    path = tmp_path / "1.stacks"
    path.write_text(FATAL.format("abort.py"))
    assert crash_in(path, 3).startswith(b"Fatal Python error: Aborted")


def test_stacks_are_written_before_the_nearest_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_stacks, "NEEDED", True)
    assert 0 < seconds_between(60, 10, 0) < 10 / 2
    assert seconds_between(0, 0) == 0
    monkeypatch.setattr(timed_stacks, "NEEDED", False)
    assert seconds_between(60, 10, 0) == 0


def test_both_writers_append(tmp_path: Path) -> None:
    first, second = (open_to_append(tmp_path / "1.stacks") for _ in range(2))
    os.write(first, b"one\n")
    os.write(second, b"two\n")
    os.close(first)
    os.close(second)
    assert (tmp_path / "1.stacks").read_bytes() == b"one\ntwo\n"

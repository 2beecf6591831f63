"""The peak of each test in a process that several share."""

from __future__ import annotations

import sys

import pytest

from pytest_rlstability.child import memory
from pytest_rlstability.child.memory import TestMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from Linux's /proc")
MIB = 1 << 20


def peak_of(used: TestMemory, size: int) -> int:
    used.begin(None)
    data = bytearray(size)
    data[::4096] = b"x" * len(data[::4096])
    del data
    return used.end()[0]


def test_each_test_has_a_peak_of_its_own():
    used = TestMemory()
    small, large, after = (peak_of(used, size * MIB) for size in (1, 200, 1))
    assert large - small > 150 * MIB
    assert large - after > 150 * MIB


def test_what_a_small_test_uses_is_not_looked_up_again(monkeypatch):
    used = TestMemory()
    first = peak_of(used, 0)
    monkeypatch.setattr(memory, "status", lambda pid: pytest.fail("looked"))
    assert abs(peak_of(used, 0) - first) < 4 * MIB


def test_over_the_cap():
    used = TestMemory()
    used.begin(1 << 50)
    assert used.end()[1] is False
    used.begin(1)
    assert used.end()[1] is True

"""Limits of control groups, read from trees of files as other machines have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_rlstability.osinfo.limits import cpu_limit, memory_limit
from pytest_rlstability.osinfo.memory import container_room

MIB, GIB = 2**20, 2**30
UNLIMITED = "9223372036854771712"
"""What version 1 writes where there is no limit."""


class Machine:
    """A root directory; ``machine["cpu.max"] = "max"`` writes a file of the control groups."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __setitem__(self, name: str, text: str) -> None:
        self._write(f"sys/fs/cgroup/{name}", text)

    def belongs_to(self, groups: str) -> None:
        self._write("proc/self/cgroup", groups)

    def _write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(f"{text}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_second_version_takes_the_tightest(machine: Machine) -> None:
    machine["a/memory.max"] = str(2 * GIB)
    machine["a/b/memory.max"] = "max"
    machine["a/cpu.max"] = "max 100000"
    machine["a/b/cpu.max"] = "150000 100000"
    machine.belongs_to("0::/a/b")
    assert memory_limit(machine.root) == 2 * GIB
    assert cpu_limit(machine.root) == 1.5
    machine.belongs_to("0::/")
    assert memory_limit(machine.root) is None


def test_first_version(machine: Machine) -> None:
    machine.belongs_to("4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/")
    # Inside the container the group's own directory is what is mounted, under no such path.
    machine["memory/memory.limit_in_bytes"] = str(512 * MIB)
    machine["cpu/cpu.cfs_quota_us"] = "50000"
    machine["cpu/cpu.cfs_period_us"] = "100000"
    assert memory_limit(machine.root) == 512 * MIB
    assert cpu_limit(machine.root) == 0.5


def test_no_limit_in_the_first_version_is_a_large_number(machine: Machine) -> None:
    machine["memory/memory.limit_in_bytes"] = UNLIMITED
    machine["cpu/cpu.cfs_quota_us"] = "-1"
    machine["cpu/cpu.cfs_period_us"] = "100000"
    machine.belongs_to("4:memory:/\n3:cpu:/")
    assert memory_limit(machine.root) is None
    assert cpu_limit(machine.root) is None


def test_room_in_a_container_is_that_of_the_fullest_group(machine: Machine) -> None:
    assert container_room(machine.root) is None
    machine.belongs_to("0::/ci/job")
    assert container_room(machine.root) is None
    machine["ci/job/memory.max"] = "max"
    machine["ci/job/memory.current"] = "700"
    assert container_room(machine.root) is None
    machine["ci/memory.max"] = "1000"
    assert container_room(machine.root) is None, "a limit says nothing without the use"
    machine["ci/memory.current"] = "900"
    assert container_room(machine.root) == 100
    machine["ci/job/memory.max"] = "730"
    assert container_room(machine.root) == 30


def test_room_in_the_first_version(machine: Machine) -> None:
    machine.belongs_to("5:cpu,memory:/job\n4:pids:/job")
    machine["memory/job/memory.usage_in_bytes"] = "5"
    machine["memory/job/memory.limit_in_bytes"] = UNLIMITED
    assert container_room(machine.root) is None
    machine["memory/job/memory.limit_in_bytes"] = "4096"
    assert container_room(machine.root) == 4091
    machine["memory/job/memory.usage_in_bytes"] = "5000"
    assert container_room(machine.root) == 0

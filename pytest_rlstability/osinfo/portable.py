"""What psutil knows about processes on systems other than Linux.

Functions have the names that they have in ``linux``; answers about a process that has ended are empty too.
"""

from __future__ import annotations

from typing import NamedTuple

import psutil


class Activity(NamedTuple):
    """The processor time of a whole process in units of 10 ms, and its context switches."""

    name: str
    ticks: int
    switches: int


def children_of(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def resident_memory(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def activity(pid: int) -> Activity | None:
    try:
        process = psutil.Process(pid)
        times, switches = process.cpu_times(), process.num_ctx_switches()
        name = process.name()
    except psutil.Error:
        return None
    return Activity(name, int((times.user + times.system) * 100), switches.voluntary + switches.involuntary)


def memory_fields() -> dict[str, int]:
    memory = psutil.virtual_memory()
    return {"MemTotal": memory.total, "MemAvailable": memory.available}

"""What psutil knows about processes, for systems other than Linux. It is imported when it is asked: that takes a while.

Functions have the names that they have elsewhere in this room; answers about a process that has ended are empty too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pytest_rlstability.model.redaction import redacted
from pytest_rlstability.osinfo import WINDOWS

T = TypeVar("T")


def _ask(pid: int, question: Callable[[Any], T], otherwise: T) -> T:
    """What *question* makes of a ``psutil.Process``; *otherwise* if it has ended or belongs to another user."""
    import psutil

    try:
        return question(psutil.Process(pid))
    except (psutil.Error, OSError):  # Windows has further errors for a process that is about to end
        return otherwise


def children_of(pid: int) -> list[int]:
    return _ask(pid, lambda process: [child.pid for child in process.children()], [])


def pids() -> list[int]:
    import psutil

    return list(psutil.pids())


def names_above() -> list[str]:
    """The names of the processes above this one, nearest first."""
    import psutil

    return _ask(psutil.Process().pid, lambda process: [parent.name() for parent in process.parents()], [])


def command_of(pid: int) -> str:
    return _ask(pid, lambda process: " ".join(redacted(process.cmdline())), "")


def is_alive(pid: int) -> bool:
    return _ask(pid, lambda process: bool(process.status() != "zombie"), False)


def resident_memory(pid: int) -> int:
    return _ask(pid, lambda process: int(process.memory_info().rss), 0)


def connections_of(pid: int) -> list[Any]:
    """The internet connections of a process, as psutil describes them."""
    return _ask(pid, lambda process: list(process.net_connections(kind="inet")), [])


def activity(pid: int) -> tuple[str, int, int] | None:
    """The name of a process, its processor time in units of 10 ms, and its context switches."""

    def read(process: Any) -> tuple[str, int, int] | None:
        switches = process.num_ctx_switches()
        times = process.cpu_times()
        return process.name(), round((times.user + times.system) * 100), switches.voluntary + switches.involuntary

    return _ask(pid, read, None)


def threads_of(pid: int) -> dict[int, int]:
    """The processor time of each thread, in units of 10 ms; of Windows only. Elsewhere root alone may ask."""
    if not WINDOWS:
        return {}

    def read(process: Any) -> dict[int, int]:
        return {thread.id: round((thread.user_time + thread.system_time) * 100) for thread in process.threads()}

    return _ask(pid, read, {})


def memory_fields() -> dict[str, int]:
    import psutil

    memory = psutil.virtual_memory()
    return {"MemTotal": memory.total, "MemAvailable": memory.available}

"""How much memory a test may still take: up to its own limit, its container's, or the machine's."""

from __future__ import annotations

from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")


def memory_room(limit: int | None = None) -> float:
    """Bytes left below *limit* (``rl_isolated(memory=...)``) for this process tree, or else on this machine."""
    import psutil

    if limit is not None:
        from pytest_rlstability.isolation.watch import resident_memory

        return max(0.0, limit - resident_memory(psutil.Process().pid))
    free = float(psutil.virtual_memory().available)
    within = container_room(CONTROL_GROUPS, Path("/proc/self/cgroup"))
    return free if within is None else min(free, within)


def container_room(root: Path, membership: Path) -> float | None:
    """Bytes left in the control group of this process or one around it, the fullest of them; None without a limit."""
    try:
        groups = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return None
    rooms = []
    for number, controllers, path in groups:
        if number == "0":
            rooms += _rooms(root, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            rooms += _rooms(root / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")
    return min(rooms, default=None)


def _rooms(root: Path, path: str, limit_name: str, used_name: str) -> list[float]:
    directory = root / path.strip("/")
    rooms = []
    for group in (directory, *directory.parents):
        limit, used = _number(group / limit_name), _number(group / used_name)
        if limit is not None and used is not None and limit < 1 << 60:  # version 1 writes no limit as a huge one
            rooms.append(max(0.0, limit - used))
        if group == root:
            break
    return rooms


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):  # "max": no limit
        return None

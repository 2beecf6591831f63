"""Which shared-memory segments a test left behind, among those of the whole machine."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable

from pytest_rlstability.osinfo import linux
from pytest_rlstability.osinfo.processes import find_descendants

DIRECTORY = "/dev/shm"


def own_segments(directory: str, names: Collection[str]) -> list[str]:
    """Those of *names* in *directory* that were left by this process or its children.

    A segment is theirs when one of them holds it (mapped or open), or when its name has the pid of one, as torch's
    have. One that no process holds is theirs too, unless there are other xdist workers: then it may belong to one of
    them, and to blame the wrong test is worse than to say nothing.
    """
    if not names:
        return []
    family = {os.getpid(), *find_descendants()}
    found = held_by(family, directory, names)
    found |= {name for name in names if any(_has_number(name, pid) for pid in family)}
    unclaimed = {name for name in set(names) - found if _is_this_users(f"{directory}/{name}")}
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT") or 1)
    if unclaimed and workers == 1:
        found |= unclaimed - held_by(set(linux.pids()) - family, directory, unclaimed)
    return sorted(found)


def held_by(pids: Iterable[int], directory: str, names: Collection[str]) -> set[str]:
    """Those of *names* that a process of *pids* has mapped or open."""
    held: set[str] = set()
    for pid in pids:
        targets = set(linux.links_of(pid))
        targets.update(one.name for one in linux.mappings(pid, directory.encode()))
        held.update(name for name in names if f"{directory}/{name}" in targets)
    return held


def _has_number(name: str, number: int) -> bool:
    return re.search(rf"(?<![0-9a-fA-F]){number}(?![0-9a-fA-F])", name) is not None


def _is_this_users(path: str) -> bool:
    try:
        return sys.platform != "win32" and os.stat(path).st_uid == os.getuid()
    except OSError:
        return False

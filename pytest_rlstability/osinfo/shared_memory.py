"""Whose a shared-memory segment is: ``/dev/shm`` is the whole machine's, and says only which user's."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable

from pytest_rlstability.signals.proc import links_of, read_bytes
from pytest_rlstability.signals.processes import find_descendants, has_children, parents_and_states


def own_segments(directory: str, names: Collection[str]) -> list[str]:
    """Those of *names* in *directory* that were left by this process or its children.

    A segment is theirs when one of them holds it (mapped or open), or when its name has the pid of one, as torch's
    have. One that nobody on the machine holds is theirs too, unless other xdist workers run tests beside this one:
    then it may be theirs as well, and to accuse the wrong test is worse than to say nothing.
    """
    if not names:
        return []
    family = {os.getpid(), *(find_descendants() if has_children() else ())}
    found = held_by(family, directory, names)
    found |= {name for name in names if any(_has_number(name, pid) for pid in family)}
    unclaimed = {name for name in set(names) - found if _is_this_users(f"{directory}/{name}")}
    if unclaimed and not _beside_other_workers():
        found |= unclaimed - held_by(set(parents_and_states()) - family, directory, unclaimed)
    return sorted(found)


def held_by(pids: Iterable[int], directory: str, names: Collection[str]) -> set[str]:
    """Those of *names* that a process of *pids* has mapped or open."""
    held: set[str] = set()
    for pid in pids:
        targets = set(links_of(pid))
        maps = read_bytes(f"/proc/{pid}/maps").decode(errors="replace")
        targets.update(line.split(maxsplit=5)[-1] for line in maps.splitlines() if directory in line)
        held.update(name for name in names if f"{directory}/{name}" in targets)
    return held


def _has_number(name: str, number: int) -> bool:
    return re.search(rf"(?<![0-9a-fA-F]){number}(?![0-9a-fA-F])", name) is not None


def _is_this_users(path: str) -> bool:
    try:
        return os.stat(path).st_uid == os.getuid()
    except OSError:
        return False


def _beside_other_workers() -> bool:
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT") or 1) > 1

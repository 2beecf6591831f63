"""Names the SQLite database that a process finds locked. SQLite waits for one in short sleeps, which say nothing.

No file is opened for it: to close a file again would free the locks that this process itself may have on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_rlstability.osinfo.linux import descriptor_target, descriptors_of, file_locks

_BYTES = range(0x40000000, 0x40000200)
"""The bytes of a database that SQLite puts locks on. No other program would."""
_LOG_BYTES = range(120, 128)
"""The same for a database with a write-ahead log, in the file beside it whose name ends in ``-shm``."""


def locked_databases(pid: int) -> Iterator[tuple[str, list[int]]]:
    """Each SQLite database that *pid* has open and somebody has locked, and the processes that hold the lock: *pid*
    itself if another of its connections does."""
    open_files = {descriptor_target(pid, descriptor): descriptor for descriptor in descriptors_of(pid)}
    for path, descriptor in open_files.items():
        log = open_files.get(f"{path}-shm")
        places, locked = (_BYTES, descriptor) if log is None else (_LOG_BYTES, log)
        locks = [lock for lock in file_locks(pid, locked) if lock.start in places]
        # With a log, readers keep nobody from writing.
        others = {lock.owner for lock in locks if lock.owner != pid and (log is None or lock.writes)}
        if others or any(lock.writes for lock in locks):
            yield path, sorted(others) or [pid]

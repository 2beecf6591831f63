"""What a Python thread waits for, by its stack: for systems that do not show the system calls of another process.

A stack shows the line that waits, and not with which arguments. So it is known of some waits only whether they have a
timeout: the standard library has a line for each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_rlstability.model.stack_dump import Frame
from pytest_rlstability.model.statements import statement_at
from pytest_rlstability.model.user_code import Origin, origin, package_path

LOCK, INPUT, CHILD, SLEEP, UNKNOWN = "futex", "input", "wait4", "clock_nanosleep", "?"
"""As ``ThreadState.call`` has them."""
_OF_FILES = {
    **dict.fromkeys(("socket.py", "ssl.py", "selectors.py", "connection.py", "windows_events.py"), INPUT),
    **dict.fromkeys(("subprocess.py", "popen_fork.py", "popen_spawn_win32.py", "popen_spawn_posix.py"), CHILD),
}
"""Files of the standard library in which threads wait."""
_TAKES_LOCK = re.compile(r"\.(?:acquire|get)\(\)|^with [\w.\[\], ]+:")
"""A line that calls what is written in C: a lock, or the queue that has no limit."""
_READS_OR_WRITES = re.compile(r"\.(?:recv|accept|connect|send|read|select|poll)\w*\(")
_JOINS_FOREVER = re.compile(r"\.join\(\)|_wait_for_tstate_lock\(\)")


def wait_of(frames: Sequence[Frame]) -> tuple[str, bool]:
    """The kind of wait of a thread that does not compute, by its *frames*, newest first, and whether it certainly has
    no timeout."""
    if not frames:
        return UNKNOWN, False
    file, function = _name(frames[0]), frames[0].function
    if ours := package_path(frames[0].file):
        return (SLEEP if ours == "child/alarms.py" else LOCK if ours.startswith("child/locks/") else UNKNOWN), False
    source = statement_at(frames[0].file, frames[0].line)
    if origin(frames[0].file) is Origin.STANDARD_LIBRARY:
        if file != "threading.py":
            return _OF_FILES.get(file, UNKNOWN), False
        if function in ("join", "_wait_for_tstate_lock", "_shutdown"):
            callers = (statement_at(frame.file, frame.line) for frame in frames[1:2])
            return LOCK, function == "_shutdown" or any(_JOINS_FOREVER.search(caller) for caller in callers)
        return LOCK, "acquire()" in source
    if _TAKES_LOCK.search(source):
        return LOCK, True
    return (INPUT if _READS_OR_WRITES.search(source) else UNKNOWN), False


def _name(frame: Frame) -> str:
    return re.split(r"[\\/]", frame.file)[-1]

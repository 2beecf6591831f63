"""Reads /proc and the files of control groups, which no other room does. Other systems have what is in ``portable``.

For a process that has ended or belongs to another user, answers are empty: ``None``, ``[]``, ``b""`` or ``"?"``.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Iterator
from io import FileIO
from os import close, listdir, read, readlink  # bound here: a test may replace them
from os import open as open_descriptor
from pathlib import Path

from pytest_rlstability.model.redaction import redacted
from pytest_rlstability.osinfo import UnavailableError, require_directory
from pytest_rlstability.osinfo.proc_records import FileLock, MappedRegion, Stat, Status

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
GONE = "?"
"""The target of a descriptor that cannot be read."""
OWN_DESCRIPTORS = "/proc/self/fd"
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)

_LONGEST_COMMAND = 4096
_ROOT = Path("/")
_NO_LIMIT = 2**60
"""Version 1 of control groups writes a number above this for "no limit"."""
_MOST_POLLED = 1024

Pid = int | str
"""The number of a process, or ``"self"``."""


if sys.platform == "win32":

    def _read_at(descriptor: int, size: int, place: int) -> bytes:
        raise OSError("Windows cannot read at a place of a file")
else:
    from os import pread as _read_at


# Files


def read_file(path: str) -> bytes:
    """A whole file, in half the time that ``open`` takes."""
    descriptor = open_descriptor(path, _READ)
    try:
        return b"".join(iter(lambda: read(descriptor, 1 << 16), b""))
    finally:
        close(descriptor)


def _about(pid: Pid, name: str, thread: int | None = None) -> bytes:
    """A file about a process, or about one thread of it."""
    try:
        return read_file(f"/proc/{pid}/{name}" if thread is None else f"/proc/{pid}/task/{thread}/{name}")
    except OSError:
        return b""


def read_memory(pid: int, address: int, size: int) -> bytes | None:
    """Bytes of another process's memory; None where that is not allowed, or nothing is there."""
    try:
        descriptor = open_descriptor(f"/proc/{pid}/mem", _READ)
        try:
            found = _read_at(descriptor, size, address)
        finally:
            close(descriptor)
    except (OSError, OverflowError):
        return None
    return found if len(found) == size else None


def _names(directory: str) -> list[str]:
    try:
        return listdir(directory)
    except OSError:
        return []


def machine_text(name: str, root: Path = _ROOT) -> str:
    """A file in ``/proc`` about the whole machine: ``machine_text("meminfo")``. Tests give another *root*."""
    return _text(root / "proc" / name)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


class AddressSpace:
    """The size of this process's address space. Its file is kept open, so that one system call reads it."""

    def __init__(self) -> None:
        try:
            self._descriptor = open_descriptor("/proc/self/statm", _READ)
        except OSError as error:
            raise UnavailableError(f"cannot read /proc/self/statm: {error.strerror}") from None

    def pages(self) -> bytes:
        """The number of pages as the kernel writes it, to be compared with the one before."""
        return _read_at(self._descriptor, 4096, 0).partition(b" ")[0]

    def close(self) -> None:
        close(self._descriptor)


# Processes


def require_proc() -> None:
    """Raise ``UnavailableError`` where /proc is not mounted."""
    require_directory(OWN_DESCRIPTORS)


def pids() -> list[int]:
    """Every process there is."""
    return [int(name) for name in _names("/proc") if name.isdigit()]


def children_of(pid: int) -> list[int]:
    """The direct children of a process, whichever of its threads started them, zombies included."""
    return [int(child) for thread in threads_of(pid) for child in _about(pid, "children", thread).split()]


def command_of(pid: int) -> str:
    """The beginning of the command line of a process, without what looks like a credential; a zombie has none."""
    words = _about(pid, "cmdline")[:_LONGEST_COMMAND].split(b"\0")
    return " ".join(redacted(word.decode(errors="replace") for word in words if word))


def has_variable(pid: int, variable: str) -> bool:
    """Whether a process was started with *variable*, ``NAME=value``, in its environment."""
    return variable.encode() in _about(pid, "environ").split(b"\0")


def has_timers(pid: int) -> bool | None:
    """Whether a process has POSIX timers; None if that cannot be read."""
    try:
        return bool(read_file(f"/proc/{pid}/timers").strip())
    except OSError:
        return None


def exit_status(pid: int) -> int | None:
    """How a process has ended that its parent has not waited for, as ``subprocess`` gives it; None if it is alive, or
    if that is not known."""
    fields = _about(pid, "stat").rpartition(b")")[2].split()
    return os.waitstatus_to_exitcode(int(fields[49])) if len(fields) > 49 and fields[0] == b"Z" else None


def ended_by(pid: int) -> int:
    """The signal that has ended a process which its parent has not waited for; 0 if none has, or if it is alive."""
    return max(0, -(exit_status(pid) or 0))


def stat(pid: int, thread: int | None = None) -> Stat | None:
    text = _about(pid, "stat", thread)
    return Stat.parse(text) if text else None


def status(pid: Pid, thread: int | None = None) -> Status | None:
    text = _about(pid, "status", thread)
    return Status(text) if text else None


def touched_and_mapped(pid: int) -> tuple[int, int] | None:
    """Bytes of private memory that a process has touched, and bytes of data that it has mapped."""
    fields = _about(pid, "statm").split()
    return ((int(fields[1]) - int(fields[2])) * PAGE, int(fields[5]) * PAGE) if len(fields) >= 6 else None


# Threads


def threads_of(pid: int) -> list[int]:
    return list(map(int, _names(f"/proc/{pid}/task")))


def own_threads() -> list[str]:
    """The threads of this process, native ones included; as text, because this is called often."""
    return _names("/proc/self/task")


def schedule(pid: int, thread: int | None = None) -> bytes:
    """Nanoseconds on a processor, nanoseconds ready but waiting for one, and turns; empty if the kernel counts none."""
    text = _about(pid, "schedstat", thread)
    return b"" if text.startswith(b"0 0 0") else text


def system_call(pid: int, thread: int) -> list[int] | None:
    """The number of the system call that a thread is in and its arguments; empty when it computes."""
    words = _about(pid, "syscall", thread).split()
    if not words:
        return None
    return [int(words[0]), *(int(word, 16) for word in words[1:7])] if words[0].isdigit() else []


def stack_pointer(pid: int, thread: int) -> int | None:
    """Where the stack of a thread ends that is in a system call; None when it computes."""
    words = _about(pid, "syscall", thread).split()
    return int(words[-2], 16) if len(words) > 2 else None


# Descriptors


def descriptors_of(pid: int) -> list[int]:
    return list(map(int, _names(f"/proc/{pid}/fd")))


def descriptor_path(pid: Pid, descriptor: int | str) -> str:
    """A path by which the open file of a process can be opened again."""
    return f"/proc/{pid}/fd/{descriptor}"


def descriptor_target(pid: Pid, descriptor: int | str) -> str:
    """``pipe:[123]``, ``socket:[456]``, a path; ``?`` when it cannot be read."""
    try:
        return readlink(descriptor_path(pid, descriptor))
    except OSError:
        return GONE


def links_of(pid: int) -> list[str]:
    """The target of each descriptor of a process."""
    return [descriptor_target(pid, descriptor) for descriptor in descriptors_of(pid)]


def inotify_watches() -> dict[str, int]:
    """The inotify descriptors of this process, and how many watches each has."""
    found = [name for name in _names(OWN_DESCRIPTORS) if descriptor_target("self", name) == "anon_inode:inotify"]
    return {name: _about("self", f"fdinfo/{name}").count(b"inotify wd:") for name in found}


def watched_by(pid: int, epoll: int) -> list[int]:
    """The descriptors that an epoll instance watches."""
    text = _about(pid, f"fdinfo/{epoll}")
    return [int(number) for number in re.findall(rb"^tfd:\s*(\d+)", text, re.MULTILINE)]


def polled_by(pid: int, thread: int) -> list[int]:
    """The descriptors that a thread waits for in ``poll``."""
    _, where, count, *_ = system_call(pid, thread) or [0, 0, 0]
    polled = read_memory(pid, where, 8 * count) if 0 < count <= _MOST_POLLED else None
    return [descriptor for descriptor, _, _ in struct.iter_unpack("ihh", polled or b"") if descriptor >= 0]


def file_locks(pid: int, descriptor: int) -> list[FileLock]:
    """The locks that processes hold on the file that *descriptor* of *pid* has open."""
    try:
        file = os.stat(descriptor_path(pid, descriptor))
    except OSError:
        return []
    if sys.platform == "win32":
        raise NotImplementedError
    name = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    lines = (line.split() for line in machine_text("locks").splitlines() if name in line)
    held = (fields for fields in lines if fields[1] != "->" and fields[5] == name and fields[4] != "-1")
    return [FileLock(int(fields[4]), fields[3] == "WRITE", int(fields[6])) for fields in held]


def unix_sockets(prefix: str) -> Iterator[tuple[int, str]]:
    """Inode and path of each Unix socket whose path has *prefix* in it."""
    for line in machine_text("net/unix").splitlines():
        fields = line.split(maxsplit=7)
        if prefix in line and len(fields) == 8:
            yield int(fields[6]), fields[7]


# Mappings


def mappings(pid: Pid = "self", having: bytes = b"") -> Iterator[MappedRegion]:
    """The mappings of a process, or those whose line has *having* in it."""
    return (MappedRegion(line) for line in _about(pid, "maps").splitlines() if having in line)


def open_page_map() -> FileIO:
    """A file with eight bytes per page of this process: whether it is in memory, and whether it is shared."""
    return FileIO("/proc/self/pagemap")


# The machine and the control groups of this process


def memory_fields(root: Path = _ROOT) -> dict[str, int]:
    """``meminfo`` in bytes: ``MemTotal``, ``MemAvailable`` and others."""
    found = re.findall(r"^(.+?):\s*(\d+)", machine_text("meminfo", root), re.MULTILINE)
    return {name: int(amount) * 1024 for name, amount in found}


def kernel_kills() -> int:
    """How many processes the kernel has killed for memory since boot, as far as this process can see."""
    of_group = next((text for group in _groups("memory", _ROOT) if (text := _text(group / "memory.events"))), "")
    texts = (machine_text("vmstat"), of_group)
    return sum(int(number) for text in texts for number in re.findall(r"^oom_kill (\d+)", text, re.MULTILINE))


def memory_limits(root: Path = _ROOT) -> Iterator[tuple[int, int | None]]:
    """Limit and use in bytes of each control group around this process that has a limit."""
    files = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    for directory in _groups("memory", root):
        for limit_name, used_name in files:
            limit, used = _text(directory / limit_name), _text(directory / used_name)
            if limit.isdigit() and int(limit) < _NO_LIMIT:
                yield int(limit), int(used) if used.isdigit() else None


def cpu_limits(root: Path = _ROOT) -> Iterator[float]:
    """Processors' worth of time that each control group around this process may use, where it has a limit."""
    for directory in _groups("cpu", root):
        quota, _, period = _text(directory / "cpu.max").partition(" ")
        if not quota:
            quota, period = _text(directory / "cpu.cfs_quota_us"), _text(directory / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Where the files of *controller* may be, from this process's group up to the root of the hierarchy."""
    for line in machine_text("self/cgroup", root).splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if controllers == "" or controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / (controllers and controller)
            directory = top / path.strip("/")
            yield from (group for group in (directory, *directory.parents) if group.is_relative_to(top))

"""Child processes of Windows. Each is in a job object, which ends everything that the child started when it is closed:
by ``end_job``, or by the end of this process, whatever ends it."""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, Structure, byref, c_int64, c_size_t, c_uint32, c_uint64, c_void_p, sizeof

assert sys.platform == "win32"

_ALL_ACCESS = 0x1FFFFF
_KILL_ON_CLOSE = 0x2000
_PROCESS_IDS, _EXTENDED_LIMITS = 3, 9
"""What can be asked of a job, or set."""
_JOB_MEMORY = 0x200
_FOREVER = 0xFFFFFFFF
_KILLED = 1
"""Exit code of a process that is ended with its job."""
_MOST_MEMBERS = 1024


class _Limits(Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = (
        ("process_time", c_int64),
        ("job_time", c_int64),
        ("flags", c_uint32),
        ("smallest_working_set", c_size_t),
        ("largest_working_set", c_size_t),
        ("most_processes", c_uint32),
        ("affinity", c_size_t),
        ("priority", c_uint32),
        ("scheduling", c_uint32),
        ("input_output", c_uint64 * 6),
        ("process_memory", c_size_t),
        ("job_memory", c_size_t),
        ("peak_process_memory", c_size_t),
        ("peak_job_memory", c_size_t),
    )


class _ProcessIds(Structure):
    """JOBOBJECT_BASIC_PROCESS_ID_LIST."""

    _fields_ = (("assigned", c_uint32), ("listed", c_uint32), ("pids", c_size_t * _MOST_MEMBERS))


class _Memory(Structure):
    """PROCESS_MEMORY_COUNTERS."""

    _fields_ = (
        ("size", c_uint32),
        ("faults", c_uint32),
        ("peak_working_set", c_size_t),
        ("working_set", c_size_t),
        ("pools", c_size_t * 4),
        ("committed", c_size_t),
        ("peak_committed", c_size_t),
    )


_kernel = ctypes.WinDLL("kernel32", use_last_error=True)
for _name, _result, *_arguments in (
    ("OpenProcess", c_void_p, c_uint32, c_uint32, c_uint32),
    ("CreateJobObjectW", c_void_p, c_void_p, c_void_p),
    ("SetInformationJobObject", c_uint32, c_void_p, c_uint32, c_void_p, c_uint32),
    ("QueryInformationJobObject", c_uint32, c_void_p, c_uint32, c_void_p, c_uint32, c_void_p),
    ("AssignProcessToJobObject", c_uint32, c_void_p, c_void_p),
    ("TerminateJobObject", c_uint32, c_void_p, c_uint32),
    ("WaitForSingleObject", c_uint32, c_void_p, c_uint32),
    ("GetExitCodeProcess", c_uint32, c_void_p, POINTER(c_uint32)),
    ("K32GetProcessMemoryInfo", c_uint32, c_void_p, c_void_p, c_uint32),
    ("GetCurrentProcess", c_void_p),
    ("CloseHandle", c_uint32, c_void_p),
):
    _function = getattr(_kernel, _name)
    _function.restype, _function.argtypes = _result, _arguments

_children: dict[int, tuple[int, int]] = {}
"""The handles of each child in a job, by pid: the process and the job."""


def put_in_job(pid: int) -> None:
    """Have a child of this process, just started, end with everything that it starts."""
    process, job = _kernel.OpenProcess(_ALL_ACCESS, False, pid), _kernel.CreateJobObjectW(None, None)
    if not process or not job:
        raise ctypes.WinError(ctypes.get_last_error())
    _limit(job, flags=_KILL_ON_CLOSE)
    if not _kernel.AssignProcessToJobObject(job, process):
        raise ctypes.WinError(ctypes.get_last_error())
    _children[pid] = process, job


def wait_for_child(pid: int) -> tuple[int, int]:
    """Wait for the end of a child in a job: its exit code, and its peak memory in bytes."""
    process, _ = _children[pid]
    _kernel.WaitForSingleObject(process, _FOREVER)
    code = c_uint32()
    _kernel.GetExitCodeProcess(process, byref(code))
    return code.value, int(_memory(process).peak_working_set)


def job_members(pid: int) -> list[int]:
    """The processes that a child in a job has started and that still run, by themselves or through others."""
    if pid not in _children:
        return []
    found = _ProcessIds()
    _kernel.QueryInformationJobObject(_children[pid][1], _PROCESS_IDS, byref(found), sizeof(found), None)
    return [int(member) for member in found.pids[: found.listed] if member != pid]


def kill_job(pid: int) -> None:
    """End a child in a job and everything that it started."""
    if pid in _children:
        _kernel.TerminateJobObject(_children[pid][1], _KILLED)


def close_job(pid: int) -> None:
    """The same for a child that has ended and was waited for. Its pid may be another's from here on."""
    kill_job(pid)
    for handle in _children.pop(pid, ()):
        _kernel.CloseHandle(handle)


class OwnMemory:
    """What this process uses, and a cap on what it and its descendants may allocate: a job inside the one of its
    parent."""

    def __init__(self) -> None:
        self._process = _kernel.GetCurrentProcess()
        self._job = 0

    @property
    def peak(self) -> int:
        """The most bytes that it had in memory so far."""
        return int(_memory(self._process).peak_working_set)

    def cap(self, size: int) -> None:
        """Let it have so many bytes on top of what it has."""
        if not self._job:
            self._job = _kernel.CreateJobObjectW(None, None)
            _kernel.AssignProcessToJobObject(self._job, self._process)
        _limit(self._job, flags=_JOB_MEMORY, job_memory=_memory(self._process).committed + size)

    def lift_cap(self) -> None:
        if self._job:
            _limit(self._job, flags=0)


def _limit(job: int, **given: int) -> None:
    limits = _Limits(**given)
    _kernel.SetInformationJobObject(job, _EXTENDED_LIMITS, byref(limits), sizeof(limits))


def _memory(process: int) -> _Memory:
    memory = _Memory(size=sizeof(_Memory))
    _kernel.K32GetProcessMemoryInfo(process, byref(memory), sizeof(memory))
    return memory

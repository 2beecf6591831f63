"""A process that locks itself in before it loads a model: no network, no other process, one directory to write to.

It uses Landlock (what may be read and written) and seccomp (which system calls are answered) through the kernel's own
interface. Both cover every thread that is started later, and nothing can lift them. It needs Linux 5.13 or later on
x86_64 or aarch64; where the kernel has no Landlock, bubblewrap does its part from outside. The file stands alone: it
runs in a fresh interpreter, before anything else is imported there.
"""

from __future__ import annotations

import ctypes
import os
import platform
import runpy
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MEMORY = 8 * 2**30
"""Bytes of its own that the locked process may have."""
_FILE_SIZE = 4 * 2**30
_FILES = 512

_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONHASHSEED", "OMP_NUM_THREADS",
         "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ATEN_CPU_CAPABILITY")  # fmt: skip
_READABLE = ("/usr", "/lib", "/lib64", "/bin", "/opt", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types",
             "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system",
             "/sys/fs/cgroup", "/dev/urandom", "/dev/random", "/dev/null", "/dev/zero")  # fmt: skip

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
# Access rights: the kernel's bits. Those of a later interface are left out where the kernel is older.
_READ_FILE, _READ_DIRECTORY, _WRITE_FILE, _TRUNCATE = 1 << 2, 1 << 3, 1 << 1, 1 << 14
_CHANGE_DIRECTORY = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8
_RIGHTS_SINCE = {1: 13, 2: 14, 3: 15, 5: 16}

# The system calls that are answered, by number on x86_64 and aarch64; -1 where it does not exist. All others are not
# permitted: a process that only reads, computes and writes files needs none of them, whatever a later kernel adds.
_ANSWERED = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "mmap": (9, 222),
    "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216), "msync": (26, 227),
    "mincore": (27, 232), "madvise": (28, 233), "mlock": (149, 228), "mlock2": (325, 284), "munlock": (150, 229),
    "mbind": (237, 235), "get_mempolicy": (239, 236), "set_mempolicy": (238, 237), "membarrier": (324, 283),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132), "restart_syscall": (219, 128), "pread64": (17, 67),
    "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "preadv": (295, 69), "pwritev": (296, 70),
    "preadv2": (327, 286), "pwritev2": (328, 287), "sendfile": (40, 71), "copy_file_range": (326, 285), "open": (2, -1),
    "openat": (257, 56), "openat2": (437, 437), "creat": (85, -1), "stat": (4, -1), "lstat": (6, -1),
    "newfstatat": (262, 79), "statx": (332, 291), "access": (21, -1), "faccessat": (269, 48), "faccessat2": (439, 439),
    "readlink": (89, -1), "readlinkat": (267, 78), "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49),
    "fchdir": (81, 50), "rename": (82, -1), "renameat": (264, 38), "renameat2": (316, 276), "mkdir": (83, -1),
    "mkdirat": (258, 34), "rmdir": (84, -1), "unlink": (87, -1), "unlinkat": (263, 35), "ftruncate": (77, 46),
    "fallocate": (285, 47), "fadvise64": (221, 223), "fsync": (74, 82), "fdatasync": (75, 83), "flock": (73, 32),
    "dup": (32, 23), "dup2": (33, -1), "dup3": (292, 24), "pipe": (22, -1), "pipe2": (293, 59),
    "close_range": (436, 436), "statfs": (137, 43), "fstatfs": (138, 44), "umask": (95, 166), "select": (23, -1),
    "pselect6": (270, 72), "poll": (7, -1), "ppoll": (271, 73), "epoll_create": (213, -1), "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21), "epoll_wait": (232, -1), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    "eventfd2": (290, 19), "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, -1), "times": (100, 153),
    "getitimer": (36, 102), "setitimer": (38, 103), "alarm": (37, -1), "getpid": (39, 172), "getppid": (110, 173),
    "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "getgroups": (115, 158), "getpgid": (121, 155), "getpgrp": (111, -1), "getsid": (124, 156), "getresuid": (118, 148),
    "getresgid": (120, 150), "uname": (63, 160), "sysinfo": (99, 179), "getrusage": (98, 165), "getrlimit": (97, 163),
    "getpriority": (140, 141), "getcpu": (309, 168), "getrandom": (318, 278), "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123), "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126), "futex": (202, 98),
    "futex_waitv": (449, 449), "set_tid_address": (218, 96), "set_robust_list": (273, 99),
    "get_robust_list": (274, 100), "rseq": (334, 293), "prctl": (157, 167), "arch_prctl": (158, -1), "exit": (60, 93),
    "exit_group": (231, 94),
}  # fmt: skip
_CLONE, _CLONE3 = (56, 220), (435, 435)
_PRLIMIT = (302, 261)
# Answered for this process alone: its own id, or 0 for itself, is the first argument.
_ITS_OWN = {"kill": (62, 129), "tgkill": (234, 131), "sched_setaffinity": (203, 122)}
# Answered for these second arguments: what a file or a terminal is, flags, locks; nothing that types or signals.
_REQUESTS = {
    "ioctl": ((16, 29), (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    "fcntl": ((72, 25), (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)),
}
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CLONE_THREAD = 0x10000
_ALLOW, _DENY, _ABSENT, _KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, (16, 24, 32)


def missing() -> str:
    """Why no process can be locked in here, or ``""``."""
    if sys.platform == "linux" and platform.machine() in _ARCHITECTURES:
        if _interface() or _bubblewrap_works():
            return ""
        return "there is neither Landlock (Linux 5.13 or later, if it is not switched off) nor bubblewrap"
    return f"{sys.platform} on {platform.machine()} has neither Landlock nor seccomp"


def _bubblewrap_works() -> bool:
    trial = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    return bool(shutil.which("bwrap")) and subprocess.run(trial, check=False, capture_output=True).returncode == 0


def interpreter(python: str, scratch: Path, search_path: Iterable[str]) -> tuple[str, bool]:
    """What to start in the place of *python*, and whether that is a wall around it: a script that runs bubblewrap.

    Where there is Landlock, *python* restricts its files itself. The script is given a step's file and directory.
    """
    if _interface():
        return python, False
    read = [str(scratch.parent), *search_path, sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]), *_READABLE]
    options = ["--unshare-all", "--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev"]
    for path in read:
        options += [] if path.startswith(("/proc", "/dev")) else ["--ro-bind-try", path, path]
    options += ["--bind", str(scratch), str(scratch), "--chdir", str(scratch)]
    script = scratch.with_name("interpreter")
    script.write_text(f'#!/bin/sh\nexec bwrap {shlex.join(options)} --bind "$2" "$2" {shlex.quote(python)} "$@"\n')
    script.chmod(0o700)
    return str(script), True


def environment(directory: Path) -> dict[str, str | None]:
    """Changes that leave of this process's environment only what libraries need to be found."""
    scratch = {"HOME": str(directory), "TMPDIR": str(directory), "MPLCONFIGDIR": str(directory)}
    return {**{name: None for name in os.environ if name not in _KEPT}, **scratch}


def check(*, scratch: str, seconds: float, walled: bool, arguments: Mapping[str, Any]) -> Any:
    """In the fresh interpreter: lock this process in, then do what `worker.check` does."""
    read = [os.path.dirname(scratch), *sys.path, sys.prefix, sys.base_prefix, os.path.dirname(__file__)]
    lock_in([scratch, sys.argv[1]], read, seconds, walled=walled)
    # By its place: of the same name there may be another version among the libraries.
    return runpy.run_path(str(Path(__file__).with_name("worker.py")))["check"](**arguments)


def lock_in(write: Iterable[str], read: Iterable[str], seconds: float, *, walled: bool = False) -> None:
    """Lock this process in for good. OSError when the kernel does not: nothing may be loaded then.

    With *walled*, bubblewrap shows it only the files that it may use.
    """
    import resource

    if sys.platform != "linux":
        raise NotImplementedError
    limits = {
        resource.RLIMIT_DATA: MEMORY,
        resource.RLIMIT_FSIZE: _FILE_SIZE,
        resource.RLIMIT_NOFILE: _FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: int(seconds * (os.cpu_count() or 1)) + 1,
    }
    for limit, most in limits.items():
        hard = resource.getrlimit(limit)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))
    _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if not walled:
        _restrict_files(write, [*read, *_READABLE])
    _restrict_calls()


def _call(name: str, *arguments: Any) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    taken = [ctypes.c_ulong(one) if isinstance(one, int) else one for one in arguments]
    result: int = getattr(libc, name)(*taken)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"cannot lock this process in: {os.strerror(ctypes.get_errno())}")
    return result


def _interface() -> int:
    try:
        return _call("syscall", _CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def _restrict_files(write: Iterable[str], read: Iterable[str]) -> None:
    version = _interface()
    handled = (1 << max(bits for since, bits in _RIGHTS_SINCE.items() if since <= version)) - 1
    attributes = struct.pack("<3Q", handled, 0b11, 0b11)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    rules = _call("syscall", _CREATE_RULESET, attributes, len(attributes), 0)
    for path in read:
        _allow(rules, path, _READ_FILE | _READ_DIRECTORY)
    for path in write:
        _allow(rules, path, handled & (_READ_FILE | _READ_DIRECTORY | _WRITE_FILE | _TRUNCATE | _CHANGE_DIRECTORY))
    _allow(rules, "/dev/null", _READ_FILE | _WRITE_FILE)
    _call("syscall", _RESTRICT_SELF, rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    if sys.platform != "linux":
        raise NotImplementedError
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not everything exists everywhere
        return
    if not os.path.isdir(path):
        rights &= _READ_FILE | _WRITE_FILE | _TRUNCATE
    _call("syscall", _ADD_RULE, rules, _PATH_BENEATH, struct.pack("<Qi", rights, descriptor), 0)
    os.close(descriptor)


def _restrict_calls() -> None:
    column, architecture = _ARCHITECTURES[platform.machine()]
    program = [_step(_LOAD, _ARCHITECTURE), _step(_EQUAL, architecture, 1, 0), _step(_RETURN, _KILL)]
    program += [_step(_LOAD, _NUMBER)]
    for numbers in _ANSWERED.values():
        if numbers[column] >= 0:
            program += [_step(_EQUAL, numbers[column], 0, 1), _step(_RETURN, _ALLOW)]
    # The C library asks for clone3 first; its flags cannot be seen from here, so it has to fall back to clone.
    program += [_step(_EQUAL, _CLONE3[column], 0, 1), _step(_RETURN, _ABSENT)]
    program += _only_if(_CLONE[column], (_ARGUMENTS[0], _ANY_BIT, _CLONE_THREAD))
    # Limits are read and not set: root could raise them. Both halves of the address of new ones are 0 then.
    program += _only_if(_PRLIMIT[column], (_ARGUMENTS[2], _EQUAL, 0), (_ARGUMENTS[2] + 4, _EQUAL, 0))
    for name, numbers in _ITS_OWN.items():
        itself = (0,) if name == "sched_setaffinity" else ()  # for kill, 0 is the whole process group
        program += _only_if(numbers[column], (_ARGUMENTS[0], _EQUAL, os.getpid(), *itself))
    for numbers, requests in _REQUESTS.values():
        program += _only_if(numbers[column], (_ARGUMENTS[1], _EQUAL, *requests))
    program.append(_step(_RETURN, _DENY))
    code = ctypes.create_string_buffer(b"".join(program))
    _call("prctl", _SET_SECCOMP, _FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)), 0, 0)


def _only_if(number: int, *conditions: tuple[int, ...]) -> list[bytes]:
    """Answer system call *number* only if, for each condition, what is at its offset compares so with a value of it."""
    block = []
    for offset, comparison, *values in conditions:
        block.append(_step(_LOAD, offset))
        over_the_others = range(len(values), 0, -1)
        block += [_step(comparison, value, jump) for value, jump in zip(values, over_the_others, strict=True)]
        block.append(_step(_RETURN, _DENY))
    return [_step(_EQUAL, number, 0, len(block) + 1), *block, _step(_RETURN, _ALLOW)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)

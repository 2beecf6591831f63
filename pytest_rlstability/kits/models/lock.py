"""A process that locks itself in before it loads a model: no network, no other process, one directory to write to.

It uses Landlock (what may be read and written) and seccomp (which system calls are answered) through the kernel's own
interface. Both cover every thread that is started later, and nothing can lift them. It needs Linux 5.13 or later on
x86_64 or aarch64. The file stands alone: it runs in a fresh interpreter, before anything else is imported there.
"""

from __future__ import annotations

import ctypes
import os
import platform
import runpy
import struct
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

# Answered with "not permitted": by number on x86_64 and aarch64; -1 where it does not exist.
_DENIED = {
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "io_uring_setup": (425, 425),
    "fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "userfaultfd": (323, 282), "chmod": (90, -1), "fchmod": (91, 52),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1), "lchown": (94, -1), "fchown": (93, 55),
    "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "truncate": (76, 45),
    "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88), "shmget": (29, 194),
    "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190), "open_by_handle_at": (304, 265),
    "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104), "reboot": (169, 142),
    "sethostname": (170, 161), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "acct": (163, 89), "swapon": (167, 224), "setpriority": (141, 140),
}  # fmt: skip
_CLONE, _CLONE3 = (56, 220), (435, 435)
_ITS_OWN = {"kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261)}
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CLONE_THREAD = 0x10000
_ALLOW, _DENY, _ABSENT, _KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16


def missing() -> str:
    """Why no process can be locked in here, or ``""``."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return f"{sys.platform} on {platform.machine()} has neither Landlock nor seccomp"
    if _interface() < 1:
        return "this kernel has no Landlock (Linux 5.13 or later has, if it is not switched off)"
    return ""


def environment(directory: Path) -> dict[str, str | None]:
    """Changes that leave of this process's environment only what libraries need to be found."""
    scratch = {"HOME": str(directory), "TMPDIR": str(directory), "MPLCONFIGDIR": str(directory)}
    return {**{name: None for name in os.environ if name not in _KEPT}, **scratch}


def check(*, scratch: str, seconds: float, arguments: Mapping[str, Any]) -> Any:
    """In the fresh interpreter: lock this process in, then do what `worker.check` does."""
    read = [os.path.dirname(scratch), *sys.path, sys.prefix, sys.base_prefix, os.path.dirname(__file__)]
    lock_in([scratch, sys.argv[1]], read, seconds)
    # By its place: of the same name there may be another version among the libraries.
    return runpy.run_path(str(Path(__file__).with_name("worker.py")))["check"](**arguments)


def lock_in(write: Iterable[str], read: Iterable[str], seconds: float) -> None:
    """Lock this process in for good. OSError when the kernel does not: nothing may be loaded then."""
    import resource

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
    program += [_step(_LOAD, _NUMBER), _step(_AT_LEAST, 0x40000000, 0, 1), _step(_RETURN, _DENY)]
    for numbers in _DENIED.values():
        if numbers[column] >= 0:
            program += [_step(_EQUAL, numbers[column], 0, 1), _step(_RETURN, _DENY)]
    # The C library asks for clone3 first; its flags cannot be seen from here, so it has to fall back to clone.
    program += [_step(_EQUAL, _CLONE3[column], 0, 1), _step(_RETURN, _ABSENT)]
    program += _only_if(_CLONE[column], _ANY_BIT, _CLONE_THREAD)
    for numbers in _ITS_OWN.values():
        program += _only_if(numbers[column], _EQUAL, os.getpid())
    program.append(_step(_RETURN, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(program))
    _call("prctl", _SET_SECCOMP, _FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)), 0, 0)


def _only_if(number: int, comparison: int, value: int) -> list[bytes]:
    """Answer system call *number* only if its first argument compares so; process 0 is this process."""
    own = [_step(_EQUAL, 0, 0, 1), _step(_RETURN, _ALLOW)] if number in (302, 261) else []
    block = [_step(_LOAD, _FIRST_ARGUMENT), *own, _step(comparison, value, 0, 1), _step(_RETURN, _ALLOW)]
    return [_step(_EQUAL, number, 0, len(block) + 1), *block, _step(_RETURN, _DENY)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)

"""Facts about the machine from files, variables and limits, without importing a library that may crash."""

from __future__ import annotations

import os
import platform
import struct
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_rlstability.osinfo import limits
from pytest_rlstability.osinfo.linux import machine_text
from pytest_rlstability.osinfo.native_stacks import find_tool

Facts = dict[str, Any]

_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "TORCH_NUM_THREADS",
    "KMP_DUPLICATE_LIB_OK", "KMP_AFFINITY", "MKL_THREADING_LAYER", "MKL_SERVICE_FORCE_INTEL", "ATEN_CPU_CAPABILITY",
    "MALLOC_ARENA_MAX", "PYTHONMALLOC", "PYTHONFAULTHANDLER", "LD_PRELOAD", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES",
    "SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY",
)  # fmt: skip
_VECTOR_FLAGS = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "amx_tile")
_CUDA_DIRECTORIES = ("usr/lib/wsl/lib", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib")


def gather_facts(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Facts:
    """Everything that is known before the first step; *root* is where ``proc``, ``sys`` and ``dev`` are looked for."""
    return {
        **_system(root, environment),
        **_processor(root),
        **limits.gather(root),
        "python": _python(),
        "tools": {name: find_tool(name) or "" for name in ("pystack", "gdb")},
        "cuda": _cuda(root),
        "variables": {name: environment[name] for name in _VARIABLES if name in environment},
    }


def _system(root: Path, environment: Mapping[str, str]) -> Facts:
    scope = machine_text("sys/kernel/yama/ptrace_scope", root)
    return {
        "platform": sys.platform,
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "libc": _libc(),
        "wsl": wsl_version(machine_text("version", root)),
        "container": _container(root, environment),
        "ptrace_scope": int(scope) if scope.isdigit() else None,
        "core_pattern": machine_text("sys/kernel/core_pattern", root),
    }


def wsl_version(kernel: str) -> int:
    """1 or 2 under the Windows Subsystem for Linux, else 0; *kernel* is what the kernel calls itself.

    >>> wsl_version("Linux version 5.15.90.1-microsoft-standard-WSL2")
    2
    >>> wsl_version("Linux version 4.4.0-19041-Microsoft")
    1
    """
    lowered = kernel.lower()
    if "wsl2" in lowered or "microsoft-standard" in lowered:
        return 2
    return 1 if "microsoft" in lowered else 0


def _libc() -> str:
    if "musl" in f"{sysconfig.get_config_var('HOST_GNU_TYPE')} {sysconfig.get_config_var('SOABI')}":
        return "musl"
    return " ".join(part for part in platform.libc_ver() if part)


def _container(root: Path, environment: Mapping[str, str]) -> str:
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    for marker, name in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if (root / marker).exists():
            return name
    return environment.get("container", "")


def _processor(root: Path) -> Facts:
    fields: dict[str, str] = {}
    for line in machine_text("cpuinfo", root).splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    flags = set(fields.get("flags", "").split())
    return {
        "cpu_model": fields.get("model name") or platform.processor() or platform.machine(),
        "cpu_flags": [flag for flag in _VECTOR_FLAGS if flag in flags],
        "cpu_flags_known": bool(flags),
        "cpus": os.cpu_count() or 1,
        "cpus_allowed": limits.allowed_processors(),
    }


def _python() -> Facts:
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "real_executable": os.path.realpath(sys.executable),
        "compiler": platform.python_compiler(),
        "bits": struct.calcsize("P") * 8,
        "debug": hasattr(sys, "gettotalrefcount"),
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    }


def _cuda(root: Path) -> Facts:
    libraries = [
        str(path) for directory in _CUDA_DIRECTORIES for path in sorted((root / directory).glob("libcuda.so.1"))
    ]
    devices = [str(path) for pattern in ("nvidia[0-9]*", "dxg") for path in sorted((root / "dev").glob(pattern))]
    return {"libraries": libraries, "devices": devices}

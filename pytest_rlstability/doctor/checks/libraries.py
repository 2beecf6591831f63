"""Imports: one library, several in an order, and what they bring into the process."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

Stage = Callable[[str], AbstractContextManager[None]]

_OPENMP = re.compile(r"^lib(?P<family>gomp|iomp5|omp)(?:[-.]|5md|$)")
_BLAS = re.compile(r"^lib(?:\w*openblas|mkl_rt|mkl_core|blis|cblas|Accelerate|nvpl_blas)", re.IGNORECASE)


def survey(modules: Sequence[str], distributions: Sequence[str]) -> dict[str, Any]:
    """Which of *modules* can be imported, as far as looking tells, and the versions of *distributions*."""
    versions = {}
    for name in distributions:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"modules": [name for name in modules if importlib.util.find_spec(name)], "distributions": versions}


def import_one(module: str) -> dict[str, Any]:
    """Import *module*; its version, and what torch says of its build."""
    loaded = importlib.import_module(module)
    version = getattr(loaded, "__version__", "")
    facts: dict[str, Any] = {"version": str(version), **native_libraries(_maps())}
    if module == "torch":
        with suppress(Exception):  # an unusual build must not fail its import for want of a word about itself
            facts["torch"] = _torch_build(loaded)
    return facts


def import_in_order(modules: Sequence[str], rl_stage: Stage) -> dict[str, Any]:
    """Import *modules* one after the other into one process."""
    for module in modules:
        with rl_stage(f"import {module}"):
            importlib.import_module(module)
    return {**native_libraries(_maps()), "thread_pools": _thread_pools()}


def native_libraries(maps: Iterable[str]) -> dict[str, list[str]]:
    """The files of OpenMP runtimes and of BLAS libraries among the lines of ``/proc/self/maps``.

    >>> native_libraries(["7f00-7f01 r-xp 0 08:01 1   /site/torch/lib/libgomp.so.1",
    ...                   "7f02-7f03 r-xp 0 08:01 2   /site/numpy.libs/libscipy_openblas64_-32a4.so"])["openmp"]
    ['/site/torch/lib/libgomp.so.1']
    """
    files = sorted({parts[5].strip() for line in maps if len(parts := line.split(None, 5)) == 6})
    return {
        "openmp": [file for file in files if _OPENMP.match(file.rpartition("/")[2])],
        "blas": [file for file in files if _BLAS.match(file.rpartition("/")[2])],
    }


def openmp_family(file: str) -> str:
    """``gomp`` (GNU), ``iomp5`` (Intel) or ``omp`` (LLVM), by the name of the runtime's file.

    >>> openmp_family("/site/torch/lib/libgomp-a34b3233.so.1"), openmp_family("/opt/libiomp5.so")
    ('gomp', 'iomp5')
    """
    found = _OPENMP.match(file.rpartition("/")[2])
    return found["family"] if found else ""


def _maps() -> list[str]:
    try:
        return Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []


def _thread_pools() -> list[str]:
    if importlib.util.find_spec("threadpoolctl") is None:
        return []
    from threadpoolctl import threadpool_info

    return [f"{pool['internal_api']} {pool['version']}, {pool['num_threads']} threads" for pool in threadpool_info()]


def _torch_build(torch: Any) -> dict[str, Any]:
    cpu = getattr(torch.backends, "cpu", None)  # not before torch 2.0
    return {
        "cpu_capability": cpu.get_cpu_capability() if cpu else "",
        "cuda_build": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "blas": (re.search(r"BLAS_INFO=(\w+)", torch.__config__.show()) or ["", ""])[1],
    }

"""Imports: one library, several in an order, and the native libraries that they load."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from pytest_rlstability.osinfo.linux import mappings
from pytest_rlstability.steps.doctor_step import Stage

_OPENMP = re.compile(r"^lib(?P<family>gomp|iomp5|omp)(?:[-.]|5md|$)")
_BLAS = re.compile(r"^lib(?:\w*openblas|mkl_rt|mkl_core|blis|cblas|Accelerate|nvpl_blas)", re.IGNORECASE)


def survey(modules: Sequence[str], distributions: Sequence[str]) -> dict[str, Any]:
    """Which of *modules* are installed, and the versions of *distributions*. Imports none of them."""
    versions = {}
    for name in distributions:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {"modules": [name for name in modules if importlib.util.find_spec(name)], "distributions": versions}


def import_one(module: str) -> dict[str, Any]:
    """Import *module*; returns its version and its native libraries."""
    loaded = importlib.import_module(module)
    return {"version": str(getattr(loaded, "__version__", "")), **native_libraries()}


def import_in_order(modules: Sequence[str], rl_stage: Stage) -> dict[str, list[str]]:
    """Import *modules* one after the other into one process."""
    for module in modules:
        with rl_stage(f"import {module}"):
            importlib.import_module(module)
    return native_libraries()


def native_libraries(mapped: Iterable[str] | None = None) -> dict[str, list[str]]:
    """The OpenMP runtimes and the BLAS libraries among the files *mapped*, by default those of this process.

    >>> native_libraries(["/site/torch/lib/libgomp.so.1", "/site/numpy.libs/libscipy_openblas64_-32a4.so"])["openmp"]
    ['/site/torch/lib/libgomp.so.1']
    """
    files = sorted({mapping.name for mapping in mappings()} if mapped is None else set(mapped))
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

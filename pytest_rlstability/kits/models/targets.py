"""The conditions under which a saved model is loaded again."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pytest_rlstability.kits.models.interpreters import Interpreter

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}


@dataclass(frozen=True)
class Target:
    """One set of conditions. *exact*: predictions must be the same bit for bit, else within the tolerance.

    A target with *parts* has all their conditions at once; when it fails, each part is tried alone to find out which
    one it was.
    """

    name: str
    exact: bool = True
    environment: Mapping[str, str | None] = field(default_factory=dict)
    elsewhere: bool = False
    interpreter: Interpreter | None = None
    parts: tuple[Target, ...] = ()


def variations(threads: int, has_gpu: bool) -> list[Target]:
    """This Python as it is, then under changed conditions: as few processes as possible, since each imports torch."""
    # A drawn hash seed would make every target one with another hash seed.
    same: dict[str, str | None] = {**{name: str(threads) for name in _THREADS}, "PYTHONHASHSEED": _hash_seed()}
    exact = not has_gpu
    less = [
        Target("no AVX", False, without_avx()),
        Target("one thread", False, dict.fromkeys(_THREADS, "1")),
    ]
    if has_gpu:
        less.insert(0, Target("CPU only", False, dict(_NO_GPU)))
    away = [
        Target("other hash seed", exact, {"PYTHONHASHSEED": "4242" if _hash_seed() != "4242" else "0"}),
        Target("other directory, home and locale", exact, _other_locale(), elsewhere=True),
    ]
    return [Target("this Python", exact, same), _together(less, same), _together(away, same)]


def _together(parts: list[Target], same: dict[str, str | None]) -> Target:
    """All *parts* at once, on top of the variables that stay the *same*."""
    environment = dict(same)
    for part in parts:
        environment |= part.environment
    return Target(
        ", ".join(part.name for part in parts),
        all(part.exact for part in parts),
        environment,
        any(part.elsewhere for part in parts),
        parts=tuple(replace(part, environment={**same, **part.environment}) for part in parts),
    )


def other_python(interpreter: Interpreter) -> Target:
    """The same model on another interpreter: other libraries too, so within the tolerance."""
    # Both would tie the other interpreter to this one's library directory.
    return Target(interpreter.name, False, {"PYTHONHOME": None, "__PYVENV_LAUNCHER__": None}, interpreter=interpreter)


def without_avx() -> dict[str, str | None]:
    """Variables that hold torch, oneDNN, MKL, OpenBLAS and numpy to the instructions any 64-bit processor has."""
    variables: dict[str, str | None] = {"ATEN_CPU_CAPABILITY": "default"}
    if platform.machine().lower() in ("x86_64", "amd64"):
        variables |= {
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
            "OPENBLAS_CORETYPE": "Nehalem",
        }
    features = _numpy_extras()
    if features:
        variables["NPY_DISABLE_CPU_FEATURES"] = " ".join(features)
    return variables


def _numpy_extras() -> list[str]:
    """The instruction sets that numpy would choose at run time here; naming any other one is an error to it."""
    core = sys.modules.get("numpy._core._multiarray_umath") or sys.modules.get("numpy.core._multiarray_umath")
    available = getattr(core, "__cpu_features__", {})
    return [name for name in getattr(core, "__cpu_dispatch__", []) if available.get(name)]


def _hash_seed() -> str:
    given = os.environ.get("PYTHONHASHSEED", "random")
    return "0" if given == "random" else given


def _other_locale() -> dict[str, str | None]:
    # Without these two, Python turns the C locale into UTF-8 and the difference is gone.
    return {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

"""The conditions under which a saved model is loaded again."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_rlstability.kits.models.interpreters import Interpreter

Changes = Mapping[str, str | None]
"""Of environment variables; None removes one."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_NO_GPU: Changes = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
# Without the last two, Python turns the C locale into UTF-8 and the difference is gone.
_OTHER_LOCALE: Changes = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@dataclass(frozen=True)
class Target:
    """One set of conditions. *exact*: predictions must be the same bit for bit, else within the tolerance."""

    name: str
    exact: bool = True
    environment: Changes = field(default_factory=dict)
    elsewhere: bool = False
    interpreter: Interpreter | None = None


def variations(threads: int, has_gpu: bool) -> list[Target]:
    """This Python as it is, then with one condition changed at a time."""
    # A drawn hash seed would make every target one with another hash seed.
    seed = os.environ.get("PYTHONHASHSEED", "random").replace("random", "0")
    same: Changes = {**dict.fromkeys(_THREADS, str(threads)), "PYTHONHASHSEED": seed}
    tolerant = {
        **({"CPU only": _NO_GPU} if has_gpu else {}),
        "no AVX": without_avx(),
        "one thread": dict.fromkeys(_THREADS, "1"),
    }
    other_seed = {**same, "PYTHONHASHSEED": "4242" if seed != "4242" else "0"}
    return [
        Target("this Python", not has_gpu, same),
        *(Target(name, False, {**same, **change}) for name, change in tolerant.items()),
        Target("other hash seed", not has_gpu, other_seed),
        Target("other directory, home and locale", not has_gpu, {**same, **_OTHER_LOCALE}, elsewhere=True),
    ]


def other_python(interpreter: Interpreter) -> Target:
    """The same model on another interpreter: other libraries too, so within the tolerance."""
    # Both would tie the other interpreter to this one's library directory.
    return Target(interpreter.name, False, {"PYTHONHOME": None, "__PYVENV_LAUNCHER__": None}, interpreter=interpreter)


def without_avx() -> Changes:
    """Variables that hold torch, oneDNN, MKL, OpenBLAS and numpy to the instructions any 64-bit processor has."""
    variables: dict[str, str | None] = {"ATEN_CPU_CAPABILITY": "default"}
    if platform.machine().lower() in ("x86_64", "amd64"):
        variables |= {
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
            "OPENBLAS_CORETYPE": "Nehalem",
        }
    # Only those that numpy would choose at run time here: naming any other one is an error to it.
    core = sys.modules.get("numpy._core._multiarray_umath") or sys.modules.get("numpy.core._multiarray_umath")
    available = getattr(core, "__cpu_features__", {})
    features = [name for name in getattr(core, "__cpu_dispatch__", []) if available.get(name)]
    return {**variables, "NPY_DISABLE_CPU_FEATURES": " ".join(features)} if features else variables

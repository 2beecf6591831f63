"""Environment variables that change one condition of native code: threads, processors' instructions, devices."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping

Changes = Mapping[str, str | None]
"""Of environment variables; None removes one."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
NO_GPU: Changes = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}


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

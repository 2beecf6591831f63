"""The conditions under which a saved model is loaded again: this Python's own, and the other Pythons to try."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_rlstability.steps import Step, run_step

Changes = Mapping[str, str | None]
"""Of environment variables; None removes one."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_NO_GPU: Changes = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
# Without the last two, Python turns the C locale into UTF-8 and the difference is gone.
_OTHER_LOCALE: Changes = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


class NoInterpreterError(Exception):
    """No Python answers to what was asked for; the message says what was tried."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that can run a step."""

    executable: str
    version: tuple[int, int, int]

    @property
    def name(self) -> str:
        return "Python " + ".".join(map(str, self.version))

    @property
    def minor(self) -> tuple[int, int]:
        return self.version[:2]


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


def find_interpreter(wanted: str) -> Interpreter:
    """The Python that *wanted* names: a path to an executable, or a version such as ``3.12``.

    A version is looked for on ``PATH`` and among pyenv's and uv's Pythons. `NoInterpreterError` when nothing answers.
    """
    probe = "import sys; result = sys.version_info[:3]"
    tried = list(_candidates(wanted))
    for candidate in tried:
        outcome = run_step(Step(candidate, code=probe, python=candidate, timeout=30.0))
        if outcome.ending == "ok":
            found = Interpreter(candidate, tuple(outcome.result))
            if not _is_version(wanted) or found.name.startswith(f"Python {wanted}"):
                return found
    raise NoInterpreterError(f"no Python answers to {wanted!r} (tried: {', '.join(tried) or 'nothing found'})")


def _is_version(wanted: str) -> bool:
    return re.fullmatch(r"3(\.\d+){1,2}", wanted) is not None


def _candidates(wanted: str) -> Iterator[str]:
    if not _is_version(wanted):
        yield shutil.which(wanted) or wanted
        return
    if sys.version.startswith((wanted + ".", wanted + " ")):
        yield sys.executable
    executable = "python.exe" if os.name == "nt" else "bin/python"
    for root in (
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions",
        Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local/share/uv/python")),
    ):
        for installed in sorted(root.glob(f"*{wanted}*/{executable}"), reverse=True):
            if re.match(rf"(cpython-)?{re.escape(wanted)}(\D|$)", installed.relative_to(root).parts[0]):
                yield str(installed)
    on_path = shutil.which("python" + ".".join(wanted.split(".")[:2]))
    if on_path:
        yield on_path


def lend_cloudpickle(directory: Path) -> str | None:
    """Copy this Python's cloudpickle into *directory* and return that, or None when there is none here either.

    It is pure Python without dependencies, so any interpreter can use it; its neighbours in ``site-packages``
    cannot be lent.
    """
    spec = importlib.util.find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        return None
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(spec.origin).parent, directory / "cloudpickle", ignore=ignore, dirs_exist_ok=True)
    return str(directory)

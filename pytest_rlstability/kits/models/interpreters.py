"""Other Pythons on this machine: finding them, and lending them what a saved model's values need."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_rlstability.steps import Step, run_step

_PROBE = """
import importlib.util, sys
names = ["numpy", "cloudpickle", "torch", "stable_baselines3", "gymnasium"]
result = {
    "version": list(sys.version_info[:3]),
    "executable": sys.executable,
    "modules": [name for name in names if importlib.util.find_spec(name)],
}
"""


class NoInterpreterError(Exception):
    """No Python answers to what was asked for; the message says what was tried."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that can run a step, and which of the libraries a model may need it has."""

    executable: str
    version: tuple[int, int, int]
    modules: frozenset[str]

    @property
    def name(self) -> str:
        return "Python " + ".".join(map(str, self.version))

    @property
    def minor(self) -> tuple[int, int]:
        return self.version[:2]

    @property
    def can_load_models(self) -> bool:
        """Whether it can load the model itself, and not only the plain values in the file."""
        return {"torch", "stable_baselines3"} <= self.modules


def find_interpreter(wanted: str) -> Interpreter:
    """The Python that *wanted* names: a path to an executable, or a version such as ``3.12``.

    A version is looked for on ``PATH`` and among pyenv's and uv's Pythons. `NoInterpreterError` when nothing answers.
    """
    tried = []
    for candidate in _candidates(wanted):
        outcome = run_step(Step(candidate, code=_PROBE, python=candidate, timeout=30.0))
        if outcome.ending == "ok":
            version: tuple[int, int, int] = tuple(outcome.result["version"])
            if not _is_version(wanted) or ".".join(map(str, version)).startswith(wanted):
                return Interpreter(candidate, version, frozenset(outcome.result["modules"]))
        tried.append(candidate)
    raise NoInterpreterError(f"no Python answers to {wanted!r} (tried: {', '.join(tried) or 'nothing found'})")


def _is_version(wanted: str) -> bool:
    return re.fullmatch(r"3(\.\d+){1,2}", wanted) is not None


def _candidates(wanted: str) -> Iterator[str]:
    if not _is_version(wanted):
        yield shutil.which(wanted) or wanted
        return
    minor = ".".join(wanted.split(".")[:2])
    if sys.version.startswith((wanted + ".", wanted + " ")):
        yield sys.executable
    executable = "python.exe" if os.name == "nt" else "bin/python"
    roots = [
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions",
        Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local/share/uv/python")),
    ]
    for root in roots:
        for installed in sorted(root.glob(f"*{minor}*"), reverse=True) if root.is_dir() else []:
            if re.match(rf"(cpython-)?{re.escape(wanted)}(\D|$)", installed.name) and (installed / executable).exists():
                yield str(installed / executable)
    on_path = shutil.which(f"python{minor}")
    if on_path:
        yield on_path


def lend_cloudpickle(directory: Path) -> str | None:
    """Copy this Python's cloudpickle alone into *directory*, for an interpreter that has none.

    It is pure Python without dependencies, so any interpreter can use it; its neighbours in ``site-packages``
    cannot be lent. ``None`` when this Python has none either.
    """
    try:
        import cloudpickle
    except ImportError:
        return None
    shutil.copytree(
        Path(cloudpickle.__file__).parent,
        directory / "cloudpickle",
        ignore=shutil.ignore_patterns("__pycache__"),
        dirs_exist_ok=True,
    )
    return str(directory)

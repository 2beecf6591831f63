"""Other Pythons on this machine: finding them, and lending them what a saved model's values need."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_rlstability.steps import Step, run_step


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

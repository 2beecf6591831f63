"""The conditions under which a saved model is loaded again: this Python's own, and the other Pythons to try."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_rlstability.model.user_code import Origin, origin
from pytest_rlstability.osinfo.conditions import NO_GPU, THREAD_VARIABLES, Changes, without_avx
from pytest_rlstability.steps import Step, run_step

_VERSION = re.compile(r"3(\.\d+){1,2}")
_PROBE = "import sys; result = sys.version_info[:3]"
# Both would tie another interpreter to this one's library directory.
_NOT_OURS: Changes = {"PYTHONHOME": None, "__PYVENV_LAUNCHER__": None}
# Without the last two, Python turns the C locale into UTF-8 and the difference is gone.
_OTHER_LOCALE: Changes = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@dataclass(frozen=True)
class Target:
    """One set of conditions. *exact*: predictions must be the same bit for bit, else within the tolerance."""

    name: str
    exact: bool = True
    environment: Changes = field(default_factory=dict)
    elsewhere: bool = False
    python: str = sys.executable
    minor: tuple[int, int] | None = None  # the version, if it is another Python than this one


def variations(threads: int, has_gpu: bool) -> list[Target]:
    """This Python as it is, then with one condition changed at a time."""
    # A drawn hash seed would make every target one with another hash seed.
    seed = os.environ.get("PYTHONHASHSEED", "random").replace("random", "0")
    same: Changes = {**dict.fromkeys(THREAD_VARIABLES, str(threads)), "PYTHONHASHSEED": seed}
    tolerant = {
        **({"CPU only": NO_GPU} if has_gpu else {}),
        "no AVX": without_avx(),
        "one thread": dict.fromkeys(THREAD_VARIABLES, "1"),
    }
    other = "4242" if seed != "4242" else "0"
    return [
        Target("this Python", not has_gpu, same),
        *(Target(name, False, {**same, **change}) for name, change in tolerant.items()),
        Target("other hash seed", not has_gpu, {**same, "PYTHONHASHSEED": other}),
        Target("other directory, home and locale", not has_gpu, {**same, **_OTHER_LOCALE}, elsewhere=True),
    ]


def find_python(wanted: str) -> Target:
    """The Python that *wanted* names, a path or a version on ``PATH``, of pyenv or of uv; LookupError without one."""
    tried = list(_candidates(wanted))
    for candidate in tried:
        outcome = run_step(Step(candidate, code=_PROBE, python=candidate, timeout=30.0))
        if outcome.ending == "ok":
            major, minor, micro = outcome.result
            version = f"{major}.{minor}.{micro}"
            if not _VERSION.fullmatch(wanted) or version.startswith(wanted):
                return Target(f"Python {version}", False, _NOT_OURS, python=candidate, minor=(major, minor))
    raise LookupError(f"no Python answers to {wanted!r} (tried: {', '.join(tried) or 'nothing found'})")


def _candidates(wanted: str) -> Iterator[str]:
    if not _VERSION.fullmatch(wanted):
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


def lend(directory: Path) -> tuple[str, ...]:
    """What another Python may import: the test's own modules, and a copy of cloudpickle, which any Python can use."""
    own = [entry for entry in map(os.path.realpath, sys.path) if origin(entry + os.sep) is Origin.USER]
    spec = importlib.util.find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        return tuple(own)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(spec.origin).parent, directory / "cloudpickle", ignore=ignore, dirs_exist_ok=True)
    return (str(directory), *own)

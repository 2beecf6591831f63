"""Whose code a file is (the user's, a library's, pytest's, ours), and the lines of the user's code in a stack."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib.util import find_spec
from types import FrameType


class Origin(StrEnum):
    """Whose code it is. *PYTEST* includes the plugins that run tests; *GENERATED* code has no file."""

    USER = "user"
    LIBRARY = "library"
    STANDARD_LIBRARY = "standard library"
    PYTEST = "pytest"
    OURS = "ours"
    GENERATED = "generated"


_RUNNERS = ("_pytest", "pytest", "pluggy", "xdist", "execnet", "pytest_timeout")
_PACKAGE = __name__.partition(".")[0]
_INSTALLED = re.compile(r"(.*/(?:site|dist)-packages/)([^/]*)")
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_SCRIPT = re.compile(r"/(?:bin|scripts)/(?:pytest|py\.test)(?:\.exe/__main__\.py|-script\.py)?$")
# The standard library of another interpreter, for stacks from another machine.
_OTHER_STANDARD_LIBRARY = re.compile(r"/lib(?:64)?/(?:python|pypy)3\.\d+t?/|/python3\d+\.zip/")
_BEFORE_STANDARD_LIBRARY = re.compile(r"^.*?(?:/lib(?:64)?/(?:python|pypy)3[^/]*/|/python3\d+\.zip/|/lib/)")
_WINDOWS_STANDARD_LIBRARY = re.compile(
    r"/python3\d+(?:-\d\d)?/lib/|/python/3\.\d+\.\d+/x\d\d/lib/|conda3?/(?:envs/[^/]+/)?lib/|"
    r"/pythonsoftwarefoundation\.python\.3[^/]*/lib/"
)


@lru_cache(maxsize=4096)
def origin(path: str) -> Origin:
    """Whose code the file at *path* is, which may come from another machine. It is the user's unless it is known to be
    something else, and so is an editable install."""
    if path.startswith("<"):
        return Origin.STANDARD_LIBRARY if path.startswith("<frozen ") else Origin.GENERATED
    if package_path(path):
        return Origin.OURS
    for form in _forms(path):
        if (found := _origin(form)) is not Origin.USER:
            return found
    return Origin.USER


@lru_cache(maxsize=4096)
def package_path(path: str) -> str:
    """The path inside this package, ``model/user_code.py``; empty for a file that is not ours."""
    for form in _forms(path):
        for root in _OUR_ROOTS:
            if form.startswith(root):
                return form.removeprefix(root)
        if (installed := _INSTALLED.match(form)) and installed[2] == _PACKAGE:
            return form[installed.end() + 1 :]
    return ""


def library_name(path: str) -> str:
    """The package or module of a library, or of the standard library, that the file at *path* is in; empty for others.

    >>> library_name("/venv/lib/python3.12/site-packages/torch/nn/modules/module.py")
    'torch'
    >>> library_name("/usr/lib/python3.12/threading.py"), library_name("/game/env.py")
    ('threading', '')
    """
    if origin(path) in (Origin.USER, Origin.GENERATED, Origin.OURS):
        return ""
    if installed := _INSTALLED.match(_plain(path)):
        return installed[2].removesuffix(".py")
    return _BEFORE_STANDARD_LIBRARY.sub("", _plain(path)).partition("/")[0].removesuffix(".py")


def _forms(path: str) -> tuple[str, ...]:
    """*path* as it is and with links resolved, both with ``/``. A link in site-packages is an editable install."""
    plain = _plain(path)
    if not os.path.isabs(path):
        return (plain,)
    real = _plain(os.path.realpath(path))
    installed = _INSTALLED.match(plain)
    return (real,) if installed and os.path.islink(installed[0]) else (plain, real)


def _plain(path: str) -> str:
    """Windows paths in lower case and with ``/``, so that one comparison serves both systems."""
    return path.replace("\\", "/").lower() if _WINDOWS.match(path) else path


def _origin(path: str) -> Origin:
    if path.startswith(_RUNNER_ROOTS) or _SCRIPT.search(path):
        return Origin.PYTEST
    if installed := _INSTALLED.match(path):
        return Origin.PYTEST if installed[2].removesuffix(".py") in _RUNNERS else Origin.LIBRARY
    if path.startswith(_LIBRARY_ROOTS):
        return Origin.LIBRARY
    if path.startswith(_STANDARD_ROOTS) or _OTHER_STANDARD_LIBRARY.search(path):
        return Origin.STANDARD_LIBRARY
    windows = _WINDOWS.match(path) and _WINDOWS_STANDARD_LIBRARY.search(path)
    return Origin.STANDARD_LIBRARY if windows else Origin.USER


def _roots(directories: Iterable[str]) -> tuple[str, ...]:
    both = (form for path in directories for form in (os.path.abspath(path), os.path.realpath(path)))
    return tuple({_plain(path).rstrip("/") + "/": None for path in both})


def _directory(module: str) -> list[str]:
    """The directory of *module*, which may be outside site-packages: a checkout of pytest, for example."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or ()) if spec else []


_OUR_ROOTS = _roots([os.path.dirname(os.path.dirname(__file__))])
_RUNNER_ROOTS = _roots(directory for name in _RUNNERS for directory in _directory(name))
_LIBRARY_ROOTS = _roots(sysconfig.get_path(name) for name in ("purelib", "platlib"))
_STANDARD_ROOTS = _roots(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_PASSED_THROUGH, _PYTEST = (Origin.OURS, Origin.STANDARD_LIBRARY), Origin.PYTEST
_DEPTH = 4


@dataclass(frozen=True)
class Site:
    """The lines outside this package and the standard library that led to a call, innermost first."""

    lines: tuple[tuple[str, int, str], ...]

    def __str__(self) -> str:
        return "\n".join(f"{relative_path(path)}:{line} in {function}" for path, line, function in self.lines)

    @property
    def innermost(self) -> str:
        return str(Site(self.lines[:1])) or "unknown place"


def relative_path(path: str) -> str:
    """*path* from the current directory on, if it is below it."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    return path if relative.startswith("..") else relative


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """*frame* and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_frame(frame: FrameType | None, bindings: tuple[str, ...] = ()) -> FrameType | None:
    """The innermost frame from *frame* outwards that is neither ours nor the standard library's, nor of a file whose
    path ends like one of *bindings*."""
    while frame is not None:
        path = frame.f_code.co_filename
        if origin(path) not in _PASSED_THROUGH and not path.endswith(bindings):
            break
        frame = frame.f_back
    return frame


def users_frames(frame: FrameType | None, depth: int, bindings: tuple[str, ...] = ()) -> Iterator[FrameType]:
    """At most *depth* such frames, from *frame* outwards, up to the call from pytest."""
    while depth and (frame := users_frame(frame, bindings)) and origin(frame.f_code.co_filename) is not _PYTEST:
        yield frame
        depth -= 1
        frame = frame.f_back


def here(bindings: tuple[str, ...] = ()) -> Site:
    """Where in the user's code this thread is; cheap enough for every call."""
    frames = users_frames(sys._getframe(1), _DEPTH, bindings)
    return Site(tuple((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in frames))

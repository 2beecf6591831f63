"""Which shell the user types commands into, and what there stands for this interpreter."""

from __future__ import annotations

import functools
import shutil
import sys
from pathlib import Path, PureWindowsPath

from pytest_rlstability.model.shells import Shell
from pytest_rlstability.osinfo import WINDOWS, portable

_SHELLS = {
    "powershell": Shell.POWERSHELL, "pwsh": Shell.POWERSHELL, "cmd": Shell.CMD, "bash": Shell.POSIX, "sh": Shell.POSIX,
    "zsh": Shell.POSIX,
}  # fmt: skip


@functools.cache
def own_shell() -> Shell:
    """The shell that this process was started from: on Windows the nearest one above it."""
    if not WINDOWS:
        return Shell.POSIX
    names = (PureWindowsPath(name).stem.lower() for name in portable.names_above())
    return next((_SHELLS[name] for name in names if name in _SHELLS), Shell.CMD)


@functools.cache
def own_python() -> str:
    """``python`` where that is this interpreter, else its path: the virtual environment may not be activated."""
    found = shutil.which("python")
    return "python" if found and Path(found).parent == Path(sys.executable).parent else sys.executable

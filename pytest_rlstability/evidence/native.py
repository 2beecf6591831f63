"""The native stack of a process that is held at its crash or stuck: by pystack, else gdb, else a word why not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

_LIMIT = 20.0
_KEPT_LINES = 60


def native_stack(pid: int, mode: str = "auto") -> str:
    """The native stacks of a live process as text; a line in parentheses when there are none to be had.

    >>> native_stack(1, "off")
    '(off)'
    """
    if mode == "off":
        return "(off)"
    if sys.platform != "linux":
        return "(only on Linux)"
    reasons = []
    for name, read in _TOOLS.items():
        program = find_tool(name)
        if program is None:
            reasons.append(f"{name} is not installed")
            continue
        text = read(program, pid)
        if text and "#" in text or 'File "' in text:
            return f"{text}\n(by {name})"
        reasons.append(f"{name}: {_reason(text)}")
    return f"(none: {'; '.join(reasons)})"


def find_tool(name: str) -> str | None:
    """The program *name*: the one installed beside this interpreter, else the one on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / name
    return str(beside) if beside.exists() else shutil.which(name)


def _run(command: list[str]) -> str:
    try:
        result = subprocess.run(
            command, capture_output=True, timeout=_LIMIT, text=True, errors="replace", stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"failed: {error}"
    return result.stdout if result.returncode == 0 and result.stdout.strip() else f"failed: {result.stderr.strip()}"


def _by_pystack(program: str, pid: int) -> str:
    return _shorten(_run([program, "remote", "--native", "--no-block", str(pid)]))


def _by_gdb(program: str, pid: int) -> str:
    commands = ["-nx", "-batch", "-ex", "set pagination off", "-ex", "thread apply all bt 40", "-p", str(pid)]
    text = _run([program, *commands])
    kept = [line for line in text.splitlines() if re.match(r"#\d+|Thread \d+|failed|.*ptrace", line)]
    return _shorten("\n".join(kept))


_TOOLS: dict[str, Callable[[str, int], str]] = {"pystack": _by_pystack, "gdb": _by_gdb}


def _shorten(text: str) -> str:
    lines = text.strip().splitlines()
    if len(lines) > _KEPT_LINES:
        lines = [*lines[:_KEPT_LINES], f"... {len(lines) - _KEPT_LINES} more lines"]
    return "\n".join(lines)


def _reason(text: str) -> str:
    if "ptrace" in text or "not permitted" in text:
        return "not permitted to attach (ptrace)"
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:120] if lines else "no stack"

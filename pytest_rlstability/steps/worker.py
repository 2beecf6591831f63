"""The side of a step that runs in the fresh interpreter; started as a script with the step's directory.

It needs only the standard library of Python 3.11 or later, so that a step can run on an interpreter that has neither
pytest nor this package installed. Only ``Step.evidence`` needs more of the package, which is then added to its path.
"""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import json
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

STACK_GRACE = 2.0
"""Seconds that a process that hangs gets to write its stacks."""

JOB, RESULT, STACK, STAGES = "job.json", "result.json", "stack.txt", "stages.jsonl"
"""The files in a step's directory, through which both sides communicate."""

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def _carry_out(directory: Path) -> None:
    job = json.loads((directory / JOB).read_text(encoding="utf-8"))
    # Never closed: destructors and atexit callbacks are part of the step, and may crash or hang too.
    stack = os.open(directory / STACK, _APPEND)
    # The step must not import the modules beside this file by their short names.
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(os.path.abspath(__file__))]
    sys.path += job["search_path"]
    if job["evidence"]:
        sys.path.append(str(Path(__file__).parents[2]))
        _hold_crashes(directory)
    faulthandler.enable(stack)
    if sys.platform != "win32" and job["stacks_signal"]:
        faulthandler.register(job["stacks_signal"], stack)
    else:
        faulthandler.dump_traceback_later(max(0.1, job["timeout"] - STACK_GRACE), file=stack)
    draft = directory / f"{RESULT}.part"
    draft.write_text(json.dumps(_attempt(job, directory)), encoding="utf-8")
    draft.replace(directory / RESULT)


def _hold_crashes(directory: Path) -> None:
    """Hold a crashed thread where it failed, also while the interpreter ends, so that its native stack can be read.

    A forked worker is not held, because its parent must see it die. Its stacks go to a file of its own.
    """
    from pytest_rlstability.child.crash_handlers import follow_forks
    from pytest_rlstability.osinfo.fatal_signals import hold_on_fatal_signals
    from pytest_rlstability.osinfo.process_control import allow_tracing, die_with_parent

    die_with_parent()
    allow_tracing()
    faulthandler.disable()
    hold_on_fatal_signals()
    follow_forks(directory, lambda: True)


def _attempt(job: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """The fields of the step's ``Outcome``."""
    try:
        if job["code"]:
            names: dict[str, Any] = {"__name__": "__step__", "arguments": job["arguments"]}
            exec(compile(job["code"], "<step>", "exec"), names)
            value = names.get("result")
        else:
            function, arguments = _function(job["call"]), dict(job["arguments"])
            if "rl_stage" in inspect.signature(function).parameters:
                arguments["rl_stage"] = _Stages(directory / STAGES).stage
            value = function(**arguments)
        json.dumps(value)
    except BaseException as error:
        last_line = traceback.format_exception_only(type(error), error)[-1].strip()
        return {"ending": "raised", "error": last_line, "stack": traceback.format_exc()}
    return {"ending": "ok", "result": value}


class _Stages:
    """Gives ``rl_stage``. Each record is written before the code goes on, so that it survives a crash."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, _APPEND)
        self._inside: list[str] = []

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._inside.append(str(name))
        self._write("open")
        state = "raised"
        try:
            yield
            state = "done"
        finally:
            self._write(state)
            self._inside.pop()

    def _write(self, state: str) -> None:
        os.write(self._descriptor, (json.dumps([" > ".join(self._inside), state]) + "\n").encode())


def _function(call: str) -> Any:
    where, _, name = call.rpartition(":")
    if where.endswith(".py"):
        return runpy.run_path(where, run_name=Path(where).stem)[name]
    return getattr(import_module(where), name)


if __name__ == "__main__":
    _carry_out(Path(sys.argv[1]))

"""The side of a step that runs in the fresh interpreter; started as a script with the step's directory.

It needs only the standard library of Python 3.10 or later, so that a step can run on an interpreter that has neither
pytest nor this package installed. Only ``Step.evidence`` needs more of the package, which is then added to its path.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import importlib.util
import inspect
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

STACK_GRACE = 2.0
"""Seconds that a process that hangs gets to write its stacks."""

STACKS_SIGNALS = tuple(
    number for number in (getattr(signal, "SIGUSR1", None), getattr(signal, "SIGRTMIN", -7) + 7) if number
)
"""Sent to make a process write its stacks; the second is the one that the supervisor of tests uses."""

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class StepFiles:
    """The files in a step's directory, through which both sides communicate."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.job = self.path("job.json")
        self.result = self.path("result.json")
        self.stack = self.path("stack.txt")
        self.stages = self.path("stages.jsonl")
        self.stdout = self.path("stdout.txt")
        self.stderr = self.path("stderr.txt")

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)


def _carry_out(directory: str) -> None:
    files = StepFiles(directory)
    with open(files.job, encoding="utf-8") as stream:
        job = json.load(stream)
    # Never closed: destructors and atexit callbacks are part of the step, and may crash or hang too.
    stack = os.open(files.stack, _APPEND)
    # The step must not import the modules beside this file by their short names.
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(os.path.abspath(__file__))]
    sys.path += job["search_path"]
    if job["evidence"]:
        _hold_crashes(directory)
    faulthandler.enable(stack)
    for number in STACKS_SIGNALS:
        faulthandler.register(number, stack)
    if not STACKS_SIGNALS:
        faulthandler.dump_traceback_later(max(0.1, job["timeout"] - STACK_GRACE), file=stack)
    _write_record(files.result, _attempt(job, files))


def _hold_crashes(directory: str) -> None:
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
    follow_forks(Path(directory), lambda: True)


def _attempt(job: Mapping[str, Any], files: StepFiles) -> dict[str, Any]:
    try:
        if job["code"]:
            names: dict[str, Any] = {"__name__": "__step__", "arguments": job["arguments"]}
            exec(compile(job["code"], "<step>", "exec"), names)
            value = names.get("result")
        else:
            function, arguments = _function(job["call"]), dict(job["arguments"])
            if "rl_stage" in inspect.signature(function).parameters:
                arguments["rl_stage"] = functools.partial(_stage, os.open(files.stages, _APPEND))
            value = function(**arguments)
        json.dumps(value)
    except BaseException as error:
        last_line = traceback.format_exception_only(type(error), error)[-1].strip()
        return {"error": last_line, "stack": traceback.format_exc()}
    return {"result": value}


@contextlib.contextmanager
def _stage(descriptor: int, name: str) -> Iterator[None]:
    """Each record is written before the code goes on, so that it survives a crash."""

    def write(event: str, text: str) -> None:
        os.write(descriptor, (json.dumps({event: text, "at": time.monotonic()}) + "\n").encode())

    write("begin", str(name))
    try:
        yield
    except BaseException:
        write("end", "raised")
        raise
    write("end", "done")


def _function(call: str) -> Callable[..., object]:
    where, _, name = call.rpartition(":")
    if where.endswith(".py"):
        module_name = os.path.splitext(os.path.basename(where))[0]
        spec = importlib.util.spec_from_file_location(module_name, where)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    function: Callable[..., object] = getattr(module, name)
    return function


def _write_record(path: str, record: Mapping[str, Any]) -> None:
    with open(path + ".part", "w", encoding="utf-8") as stream:
        json.dump(record, stream)
    os.replace(path + ".part", path)


if __name__ == "__main__":
    _carry_out(sys.argv[1])

"""The side of a step that runs in the fresh interpreter; started as a script with the step's directory.

It needs nothing but the standard library of Python 3.10 or later, so a step can run on an interpreter that has neither
pytest nor this package installed. Only the held crashes that ``Step.evidence`` asks for take more of the package, which
is lent to the step then.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STACK_GRACE = 2.0
"""How long a process that hangs is given to write its stacks."""

STACKS_SIGNALS = tuple(
    number for number in (getattr(signal, "SIGUSR1", None), getattr(signal, "SIGRTMIN", -7) + 7) if number
)
"""Sent to have a process write its stacks; the second is the one that the supervisor of tests uses."""

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


@dataclass(frozen=True)
class StepFiles:
    """The files in a step's directory, through which both sides speak."""

    directory: str

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    @property
    def job(self) -> str:
        return self.path("job.json")

    @property
    def result(self) -> str:
        return self.path("result.json")

    @property
    def stack(self) -> str:
        return self.path("stack.txt")

    @property
    def stages(self) -> str:
        return self.path("stages.jsonl")

    @property
    def stdout(self) -> str:
        return self.path("stdout.txt")

    @property
    def stderr(self) -> str:
        return self.path("stderr.txt")


def _carry_out(directory: str) -> None:
    files = StepFiles(directory)
    with open(files.job, encoding="utf-8") as stream:
        job = json.load(stream)
    # Never closed: destructors and atexit callbacks may crash or hang as well, and that is part of the step.
    stack = os.open(files.stack, _APPEND)
    # The directory of this file must not lend its modules' names to the step.
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(os.path.abspath(__file__))]
    sys.path += job["search_path"]
    if job["evidence"]:
        _hold_crashes(directory)
    faulthandler.enable(stack)
    if STACKS_SIGNALS:
        _write_stacks_when_asked(stack)
    else:
        faulthandler.dump_traceback_later(max(0.1, job["timeout"] - STACK_GRACE), file=stack)
    _write_record(files.result, _attempt(job, files))


def _hold_crashes(directory: str) -> None:
    """Hold a crashed thread where it failed, so that its native stack can be read; also while the interpreter ends.

    A forked worker is not held, whoever waits for it must see it die, and its stacks go to a file of its own.
    """
    from pytest_rlstability.isolation import faults, kernel

    kernel.die_with_parent()
    kernel.allow_tracing()
    faulthandler.disable()
    kernel.hold_on_fatal_signals()
    faults.follow_forks(Path(directory), lambda: True)


def _write_stacks_when_asked(descriptor: int) -> None:
    for number in STACKS_SIGNALS:
        faulthandler.register(number, descriptor)


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
    """Each crumb is written before the code goes on, so that it survives whatever comes."""

    def drop(crumb: dict[str, object]) -> None:
        os.write(descriptor, (json.dumps({**crumb, "at": time.monotonic()}) + "\n").encode())

    drop({"begin": str(name)})
    try:
        yield
    except BaseException:
        drop({"end": "raised"})
        raise
    drop({"end": "done"})


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

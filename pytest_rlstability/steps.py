"""One piece of code in a fresh interpreter, bounded in time: how did it end?

The same file is both sides. Imported, it starts the interpreter and reads how it ended; run as a script by that
interpreter, it carries the piece of code out. The script side needs nothing but the standard library of Python 3.10
or later, so a step can run on an interpreter that has neither pytest nor this package installed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

Ending = Literal["ok", "raised", "crash", "hang"]

_TAIL = 8192
_STACK_GRACE = 2.0
_WINDOWS_CRASHES = {
    0xC0000005: "ACCESS_VIOLATION", 0xC00000FD: "STACK_OVERFLOW", 0xC000001D: "ILLEGAL_INSTRUCTION",
    0xC0000374: "HEAP_CORRUPTION", 0xC0000094: "INTEGER_DIVIDE_BY_ZERO", 0xC0000409: "STACK_BUFFER_OVERRUN",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What to run and under which conditions.

    ``Step("torch", code="import torch; result = torch.ones(2).sum().item()")`` runs text, and what it leaves in
    ``result`` comes back; ``Step("load", call="my_checks:load", arguments={"path": "model.zip"})`` calls a function
    and its return value comes back. *call* may also name a file, ``"/path/checks.py:load"``. In *environment* a
    value of ``None`` removes the variable; *search_path* goes to the end of ``sys.path``, so that it lends modules
    without hiding the interpreter's own.
    """

    name: str
    call: str = ""
    code: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict)
    python: str = sys.executable
    timeout: float = 60.0
    environment: Mapping[str, str | None] = field(default_factory=dict)
    directory: str | None = None
    search_path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a step ended.

    ``run_step(Step("abort", code="import os; os.abort()"))`` gives an outcome with ``ending == "crash"``,
    ``signal == "SIGABRT"`` and the Python stack in ``stack``. ``raised`` has the exception's last line in ``error``
    and its traceback in ``stack``; ``hang`` has the stacks of all threads at the time limit; ``ok`` has ``result``.
    """

    name: str
    ending: Ending
    result: Any = None
    error: str = ""
    signal: str = ""
    exit_code: int | None = None
    stack: str = ""
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0

    def headline(self) -> str:
        """One line for a person: ``ok``, ``SIGSEGV``, ``ValueError: ...``, ``no end after 60 s``."""
        if self.ending == "ok":
            return "ok"
        if self.ending == "raised":
            return self.error
        if self.ending == "hang":
            return f"no end after {self.seconds:.0f} s"
        return self.signal or f"exit code {self.exit_code} before the end"


def run_step(step: Step) -> Outcome:
    """Run *step* in a fresh interpreter and process group; nothing of it is alive when this returns."""
    with tempfile.TemporaryDirectory(prefix="rlstability-step-", ignore_cleanup_errors=True) as directory:
        files = _Files(directory)
        files.write_job(step)
        started = time.monotonic()
        with open(files.stdout, "wb") as stdout, open(files.stderr, "wb") as stderr:
            try:
                process = subprocess.Popen(
                    [step.python, os.path.abspath(__file__), directory],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env=_environment(step.environment),
                    cwd=step.directory,
                    start_new_session=True,
                )
            except OSError as error:
                return Outcome(step.name, "raised", error=f"cannot start {step.python}: {error}")
        try:
            timed_out = _wait(process, step.timeout, files)
        finally:
            _kill_group(process)
        return files.outcome(step, process.returncode, timed_out, time.monotonic() - started)


def run_steps(
    steps: Iterable[Step], *, at_once: int = 2, on_end: Callable[[Outcome], None] | None = None
) -> list[Outcome]:
    """Run *steps* with at most *at_once* alive, and give their outcomes in the order of *steps*.

    Two at once by default: each imports what it needs from scratch, and a library such as torch keeps one core
    busy for seconds while it does.
    """

    def run(step: Step) -> Outcome:
        outcome = run_step(step)
        if on_end is not None:
            on_end(outcome)
        return outcome

    with ThreadPoolExecutor(max_workers=at_once) as pool:
        return list(pool.map(run, steps))


def signal_name(exit_code: int) -> str:
    """The signal (or Windows exception) that an exit code stands for, or ``""``: ``-11`` is ``SIGSEGV``."""
    if exit_code < 0:
        try:
            return signal.Signals(-exit_code).name
        except ValueError:
            return f"signal {-exit_code}"
    return _WINDOWS_CRASHES.get(exit_code & 0xFFFFFFFF, "") if os.name == "nt" else ""


@dataclass(frozen=True)
class _Files:
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
    def stdout(self) -> str:
        return self.path("stdout.txt")

    @property
    def stderr(self) -> str:
        return self.path("stderr.txt")

    def write_job(self, step: Step) -> None:
        job = {
            "call": step.call,
            "code": step.code,
            "arguments": dict(step.arguments),
            "search_path": list(step.search_path),
            "timeout": step.timeout,
        }
        with open(self.job, "w", encoding="utf-8") as stream:
            json.dump(job, stream)

    def outcome(self, step: Step, exit_code: int, timed_out: bool, seconds: float) -> Outcome:
        stdout, stderr, stack = _tail(self.stdout), _tail(self.stderr), _tail(self.stack)
        if timed_out:
            return Outcome(step.name, "hang", stack=stack, stdout=stdout, stderr=stderr, seconds=seconds)
        record = self._record() if exit_code == 0 else None
        if record is None:
            return Outcome(
                step.name, "crash", signal=signal_name(exit_code), exit_code=exit_code,
                stack=stack, stdout=stdout, stderr=stderr, seconds=seconds,
            )  # fmt: skip
        ending: Ending = "raised" if "error" in record else "ok"
        return Outcome(
            step.name, ending, result=record.get("result"), error=record.get("error", ""), exit_code=exit_code,
            stack=record.get("stack", ""), stdout=stdout, stderr=stderr, seconds=seconds,
        )  # fmt: skip

    def _record(self) -> dict[str, Any] | None:
        try:
            with open(self.result, encoding="utf-8") as stream:
                record: dict[str, Any] = json.load(stream)
        except (OSError, ValueError):
            return None
        return record


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    merged: dict[str, str | None] = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _wait(process: subprocess.Popen[bytes], timeout: float, files: _Files) -> bool:
    """Whether the time limit passed first; if so the stacks were asked for and have been written."""
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        if hasattr(signal, "SIGUSR1") and os.path.exists(files.stack):
            process.send_signal(signal.SIGUSR1)
            _wait_for_dump(process, files.stack)
        return True
    return False


def _wait_for_dump(process: subprocess.Popen[bytes], path: str) -> None:
    deadline, size = time.monotonic() + _STACK_GRACE, -1
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
        previous, size = size, os.path.getsize(path)
        if size and size == previous:
            return


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # The group outlives its leader while a descendant lives; the leader's number cannot be reused until then.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(max(0, size - _TAIL))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""


# The side that runs in the fresh interpreter.


def _carry_out(directory: str) -> None:
    files = _Files(directory)
    with open(files.job, encoding="utf-8") as stream:
        job = json.load(stream)
    # Never closed: destructors and atexit callbacks may crash or hang as well, and that is part of the step.
    stack = os.open(files.stack, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    faulthandler.enable(stack)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, stack)
    else:
        faulthandler.dump_traceback_later(max(0.1, job["timeout"] - _STACK_GRACE), file=stack)
    # The directory of this file must not lend its modules' names to the step.
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(os.path.abspath(__file__))]
    sys.path += job["search_path"]
    _write_record(files.result, _attempt(job))


def _attempt(job: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if job["code"]:
            names: dict[str, Any] = {"__name__": "__step__", "arguments": job["arguments"]}
            exec(compile(job["code"], "<step>", "exec"), names)
            value = names.get("result")
        else:
            value = _function(job["call"])(**job["arguments"])
        json.dumps(value)
    except BaseException as error:
        last_line = traceback.format_exception_only(type(error), error)[-1].strip()
        return {"error": last_line, "stack": traceback.format_exc()}
    return {"result": value}


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

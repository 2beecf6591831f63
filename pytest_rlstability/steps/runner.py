"""Starts the interpreter of a step, waits for it within the time limit, gathers evidence and reads how it ended."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pytest_rlstability.osinfo.fatal_signals import STACKS_SIGNAL, ask_for_stacks, signal_name, signal_of_exit
from pytest_rlstability.osinfo.helper_process import HelperProcess
from pytest_rlstability.osinfo.native_stacks import native_stack
from pytest_rlstability.osinfo.process_control import end_tree
from pytest_rlstability.osinfo.threads import held_signal, look_at_tree
from pytest_rlstability.osinfo.worker_stacks import worker_stacks
from pytest_rlstability.steps import worker

Ending = Literal["ok", "raised", "crash", "hang"]
StageState = Literal["done", "raised", "open"]

_TAIL = 8192
_LOOK_EVERY = 0.1
_MOST_OUTPUT = 32 * 2**20
_MARK = "RLSTABILITY_STEP"
_STDOUT, _STDERR = "stdout.txt", "stderr.txt"
_STACKS_SIGNAL: int | None = STACKS_SIGNAL or getattr(signal, "SIGUSR1", None)


@dataclass(frozen=True)
class Step:
    """What to run and under which conditions.

    ``Step("torch", code="import torch; result = torch.ones(2).sum().item()")`` runs text, and ``result`` comes back.
    ``Step("load", call="my_checks:load", arguments={"path": "model.zip"})`` calls a function, and its return value
    comes back; *call* may also name a file, ``"/path/checks.py:load"``. A function with a parameter ``rl_stage`` gets
    stages like those of the fixture. In *environment* a value of ``None`` removes the variable. *search_path* goes to
    the end of ``sys.path``, so that it hides none of the interpreter's own modules. With *evidence* a crash is held
    until its native stack has been read, and workers' stacks are kept.
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
    evidence: bool = False


@dataclass(frozen=True)
class StageRecord:
    """A stage that a step's function entered. Its name begins with those of the stages around it."""

    name: str
    state: StageState


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
    native: str = ""
    workers: str = ""
    stages: tuple[StageRecord, ...] = ()

    def headline(self) -> str:
        """One line for a person: ``ok``, ``SIGSEGV``, ``ValueError: ...``, ``still running after 60 s``."""
        if self.ending == "ok":
            return "ok"
        if self.ending == "raised":
            return self.error
        if self.ending == "hang":
            return f"still running after {self.seconds:.0f} s"
        return self.signal or f"exit code {self.exit_code} before the end"


def run_step(step: Step) -> Outcome:
    """Run *step* in a fresh interpreter and process group; nothing of it is alive when this returns."""
    with tempfile.TemporaryDirectory(prefix="rlstability-step-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        job = {**asdict(step), "stacks_signal": _STACKS_SIGNAL}
        (directory / worker.JOB).write_text(json.dumps(job), encoding="utf-8")
        started = time.monotonic()
        with open(directory / _STDOUT, "ab") as stdout, open(directory / _STDERR, "ab") as stderr:
            try:
                process = HelperProcess(
                    [step.python, os.path.abspath(worker.__file__), name],
                    environment={**step.environment, _MARK: name},
                    stdout=stdout,
                    stderr=stderr,
                    cwd=step.directory,
                    start_new_session=True,
                )
            except OSError as error:
                return Outcome(step.name, "raised", error=f"cannot start {step.python}: {error}")
        try:
            stopped = _watch(process, step, directory)
        finally:
            end_tree(process.pid, variable=f"{_MARK}={name}")
            process.wait()
        outcome = stopped or _ended(step.name, directory, process.returncode)
        return replace(
            outcome, stdout=_tail(directory / _STDOUT), stderr=_tail(directory / _STDERR),
            stack=outcome.stack or _tail(directory / worker.STACK), seconds=time.monotonic() - started,
            workers=outcome.workers or _dead_worker_stacks(directory),
            stages=read_stages(_tail(directory / worker.STAGES, sys.maxsize).splitlines()),
        )  # fmt: skip


def run_steps(
    steps: Iterable[Step], *, at_once: int = 2, on_end: Callable[[Outcome], None] | None = None
) -> list[Outcome]:
    """Run *steps*, *at_once* of them at a time, and return their outcomes in the order of *steps*.

    Two at a time by default: an import of a library such as torch keeps one core busy for seconds.
    """

    def run(step: Step) -> Outcome:
        outcome = run_step(step)
        if on_end is not None:
            on_end(outcome)
        return outcome

    with ThreadPoolExecutor(max_workers=at_once) as pool:
        return list(pool.map(run, steps))


def _watch(process: HelperProcess, step: Step, directory: Path) -> Outcome | None:
    """Wait for the end. The outcome of a process that hangs or is held at a crash; None for one that ended."""
    deadline = time.monotonic() + step.timeout
    while (left := deadline - time.monotonic()) > 0:
        if process.ended_within(min(left, _LOOK_EVERY)):
            return None
        _bound_output(directory)
        if step.evidence and (held := held_signal(process.pid)):
            native = native_stack(process.pid, dump=_tail(directory / worker.STACK))
            return Outcome(step.name, "crash", signal=signal_name(held), native=native)
    stack = directory / worker.STACK
    if stack.exists():
        ask_for_stacks(process.pid, stack, _STACKS_SIGNAL, seconds=worker.STACK_GRACE)
    if not step.evidence:
        return Outcome(step.name, "hang")
    workers = worker_stacks(process.pid, look_at_tree(process.pid), directory, "auto")
    return Outcome(step.name, "hang", native=native_stack(process.pid), workers=workers)


def _ended(name: str, directory: Path, exit_code: int) -> Outcome:
    """The outcome of a process that ended by itself."""
    result = _tail(directory / worker.RESULT, sys.maxsize)
    if exit_code or not result:
        return Outcome(name, "crash", signal=signal_of_exit(exit_code), exit_code=exit_code)
    return Outcome(name, exit_code=exit_code, **json.loads(result))


def _dead_worker_stacks(directory: Path) -> str:
    """The stacks of the processes that the step forked and that died by a signal."""
    dumps = {path.stem: _tail(path) for path in sorted(directory.glob("*.fault"))}
    return "\n".join(f"process {pid}\n{dump}" for pid, dump in dumps.items() if dump)


def _bound_output(directory: Path) -> None:
    """Cut output files down to their tails before they fill the disk."""
    for path in (directory / _STDOUT, directory / _STDERR):
        if path.stat().st_size > _MOST_OUTPUT:
            tail = _tail(path)
            os.truncate(path, 0)
            with open(path, "a", encoding="utf-8") as stream:
                stream.write(tail)


def read_stages(lines: Iterable[str]) -> tuple[StageRecord, ...]:
    """The stages that a step's function entered, in order; a line that a crash cut short is left out.

    >>> read_stages(['["make env", "open"]', '["make env", "done"]', '["learn", "open"]', '["lea'])
    (StageRecord(name='make env', state='done'), StageRecord(name='learn', state='open'))
    """
    states: dict[str, StageState] = {}
    for line in lines:
        with suppress(ValueError):
            name, state = json.loads(line)
            states[name] = state
    return tuple(StageRecord(*record) for record in states.items())


def _tail(path: Path, most: int = _TAIL) -> str:
    """The last *most* bytes of a file as text; empty if there is no such file."""
    try:
        with open(path, "rb") as stream:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(max(0, size - most))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""

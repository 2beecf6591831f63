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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pytest_rlstability.osinfo.fatal_signals import ask_for_stacks, signal_name, signal_of_exit
from pytest_rlstability.osinfo.helper_process import PACKAGE_PARENT, HelperProcess
from pytest_rlstability.osinfo.native_stacks import native_stack
from pytest_rlstability.osinfo.process_control import end_tree
from pytest_rlstability.osinfo.threads import held_signal, look_at_tree
from pytest_rlstability.osinfo.worker_stacks import worker_stacks
from pytest_rlstability.steps import worker
from pytest_rlstability.steps.worker import STACK_GRACE, StepFiles

Ending = Literal["ok", "raised", "crash", "hang"]

_TAIL = 8192
_LOOK_EVERY = 0.1
_MOST_OUTPUT = 32 * 2**20
_MARK = "RLSTABILITY_STEP"


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
    """A stage that a step's function entered."""

    name: str
    state: Literal["done", "raised", "open"]
    seconds: float | None = None


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
    with tempfile.TemporaryDirectory(prefix="rlstability-step-", ignore_cleanup_errors=True) as directory:
        files = StepFiles(directory)
        _write_job(step, files)
        started = time.monotonic()
        with open(files.stdout, "ab") as stdout, open(files.stderr, "ab") as stderr:
            try:
                process = HelperProcess(
                    [step.python, os.path.abspath(worker.__file__), directory],
                    environment={**step.environment, _MARK: directory},
                    stdout=stdout,
                    stderr=stderr,
                    cwd=step.directory,
                    start_new_session=True,
                )
            except OSError as error:
                return Outcome(step.name, "raised", error=f"cannot start {step.python}: {error}")
        evidence = _Evidence()
        try:
            timed_out = _wait(process, step, files, evidence)
        finally:
            end_tree(process.pid, variable=f"{_MARK}={directory}")
            process.wait()
        seconds = time.monotonic() - started
        ended = _ending(step.name, files, process.returncode, timed_out, evidence)
        return replace(
            ended, stdout=evidence.output_of(files.stdout), stderr=evidence.output_of(files.stderr),
            seconds=seconds, native=evidence.native, workers=evidence.workers or _dead_worker_stacks(files),
            stages=read_stages(_text(files.stages).splitlines()),
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


@dataclass
class _Evidence:
    """What was seen of a process before it was killed."""

    held_by: str = ""
    native: str = ""
    workers: str = ""
    output: dict[str, str] = field(default_factory=dict)

    def output_of(self, path: str) -> str:
        return (self.output.get(path, "") + _tail(path))[-_TAIL:]


def _write_job(step: Step, files: StepFiles) -> None:
    job = {
        "call": step.call,
        "code": step.code,
        "arguments": dict(step.arguments),
        "search_path": [*step.search_path, *([PACKAGE_PARENT] if step.evidence else [])],
        "timeout": step.timeout,
        "evidence": step.evidence,
    }
    with open(files.job, "w", encoding="utf-8") as stream:
        json.dump(job, stream)


def _ending(name: str, files: StepFiles, exit_code: int, timed_out: bool, evidence: _Evidence) -> Outcome:
    if timed_out:
        return Outcome(name, "hang", stack=_tail(files.stack))
    if evidence.held_by:
        return Outcome(name, "crash", signal=evidence.held_by, stack=_tail(files.stack))
    result = _text(files.result)
    if exit_code or not result:
        return Outcome(name, "crash", signal=signal_of_exit(exit_code), exit_code=exit_code, stack=_tail(files.stack))
    record: dict[str, Any] = json.loads(result)
    if "error" in record:
        return Outcome(name, "raised", error=record["error"], exit_code=exit_code, stack=record["stack"])
    return Outcome(name, "ok", result=record["result"], exit_code=exit_code)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _dead_worker_stacks(files: StepFiles) -> str:
    """The stacks of the processes that the step forked and that died by a signal."""
    names = sorted(name for name in os.listdir(files.directory) if name.endswith(".fault"))
    dumps = {name.partition(".")[0]: _tail(files.path(name)) for name in names}
    return "\n".join(f"process {pid}\n{dump}" for pid, dump in dumps.items() if dump)


def _wait(process: HelperProcess, step: Step, files: StepFiles, evidence: _Evidence) -> bool:
    """Whether the time limit passed before the end. Gathers evidence of a process that hangs or is held at a crash."""
    deadline = time.monotonic() + step.timeout
    while (left := deadline - time.monotonic()) > 0:
        if process.ended_within(min(left, _LOOK_EVERY)):
            return False
        _bound_output(files, evidence.output)
        if step.evidence and (held := held_signal(process.pid)):
            evidence.held_by = signal_name(held)
            evidence.native = native_stack(process.pid)
            return False
    if hasattr(signal, "SIGUSR1") and os.path.exists(files.stack):
        ask_for_stacks(process.pid, Path(files.stack), signal.SIGUSR1, seconds=STACK_GRACE)
    if step.evidence:
        evidence.native = native_stack(process.pid)
        evidence.workers = worker_stacks(process.pid, look_at_tree(process.pid), Path(files.directory), "auto")
    return True


def _bound_output(files: StepFiles, kept: dict[str, str]) -> None:
    """Empty output files before they fill the disk; their tails are *kept*."""
    for path in (files.stdout, files.stderr):
        if os.path.getsize(path) > _MOST_OUTPUT:
            kept[path] = _tail(path)
            os.truncate(path, 0)


def read_stages(lines: Iterable[str]) -> tuple[StageRecord, ...]:
    """The stages that a step's function entered, in order; a line that a crash cut short is left out.

    >>> read_stages(['{"begin": "make env", "at": 1.0}', '{"end": "done", "at": 1.5}', '{"begin": "learn", "at": 2.0}'])
    (StageRecord(name='make env', state='done', seconds=0.5), StageRecord(name='learn', state='open', seconds=None))
    """
    records: list[StageRecord] = []
    inside: list[tuple[int, float]] = []
    for line in lines:
        try:
            crumb = json.loads(line)
        except ValueError:
            continue
        if "begin" in crumb:
            inside.append((len(records), crumb["at"]))
            path = [records[index].name.rpartition(" > ")[2] for index, _ in inside[:-1]]
            records.append(StageRecord(" > ".join([*path, crumb["begin"]]), "open"))
        elif inside:
            index, began = inside.pop()
            records[index] = StageRecord(records[index].name, crumb["end"], crumb["at"] - began)
    return tuple(records)


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(max(0, size - _TAIL))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""

"""The side of a step that starts the interpreter, waits within bounds, gathers evidence and reads how it ended."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pytest_rlstability.steps import worker
from pytest_rlstability.steps.worker import STACK_GRACE, StepFiles

Ending = Literal["ok", "raised", "crash", "hang"]

_TAIL = 8192
_LOOK_EVERY = 0.1
_MOST_OUTPUT = 32 * 2**20
_MARK = "RLSTABILITY_STEP"
_PACKAGE_PARENT = str(Path(__file__).parents[2])
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
    without hiding the interpreter's own. A function with a parameter ``rl_stage`` is given breadcrumbs like those of
    the fixture. With *evidence* a crash is held until its native stack has been read, and workers' stacks are kept.
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
    """A stage that a step's function entered, in the order of entering: ``done``, ``raised`` or still ``open``."""

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
        files = StepFiles(directory)
        _write_job(step, files)
        started = time.monotonic()
        with open(files.stdout, "ab") as stdout, open(files.stderr, "ab") as stderr:
            try:
                process = subprocess.Popen(
                    [step.python, os.path.abspath(worker.__file__), directory],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env=_environment({**step.environment, _MARK: directory}),
                    cwd=step.directory,
                    start_new_session=True,
                )
            except OSError as error:
                return Outcome(step.name, "raised", error=f"cannot start {step.python}: {error}")
        evidence = _Evidence()
        try:
            timed_out = _wait(process, step, files, evidence)
        finally:
            _kill_group(process)
            _kill_escaped(directory)
        seconds = time.monotonic() - started
        ended = _ending(step.name, files, process.returncode, timed_out, evidence)
        return replace(
            ended, stdout=evidence.output_of(files.stdout), stderr=evidence.output_of(files.stderr),
            seconds=seconds, native=evidence.native,
            workers=evidence.workers or _workers_last_words(files), stages=_stages(files),
        )  # fmt: skip


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
        "search_path": [*step.search_path, *([_PACKAGE_PARENT] if step.evidence else [])],
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
    record = _record(files) if exit_code == 0 else None
    if record is None:
        return Outcome(name, "crash", signal=signal_name(exit_code), exit_code=exit_code, stack=_tail(files.stack))
    if "error" in record:
        return Outcome(name, "raised", error=record["error"], exit_code=exit_code, stack=record["stack"])
    return Outcome(name, "ok", result=record["result"], exit_code=exit_code)


def _record(files: StepFiles) -> dict[str, Any] | None:
    try:
        with open(files.result, encoding="utf-8") as stream:
            record: dict[str, Any] = json.load(stream)
    except (OSError, ValueError):
        return None
    return record


def _stages(files: StepFiles) -> tuple[StageRecord, ...]:
    try:
        with open(files.stages, encoding="utf-8", errors="replace") as stream:
            return read_stages(stream)
    except OSError:
        return ()


def _workers_last_words(files: StepFiles) -> str:
    """The stacks of the processes that the step forked and that died by a signal."""
    names = sorted(name for name in os.listdir(files.directory) if name.endswith(".fault"))
    dumps = {name.partition(".")[0]: _tail(files.path(name)) for name in names}
    return "\n".join(f"process {pid}\n{dump}" for pid, dump in dumps.items() if dump)


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    merged: dict[str, str | None] = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _wait(process: subprocess.Popen[bytes], step: Step, files: StepFiles, evidence: _Evidence) -> bool:
    """Whether the time limit passed first; what there was to see of a process that hangs or is held is seen."""
    deadline = time.monotonic() + step.timeout
    while (left := deadline - time.monotonic()) > 0:
        try:
            process.wait(min(left, _LOOK_EVERY))
            return False
        except subprocess.TimeoutExpired:
            _bound_output(files, evidence.output)
        if step.evidence and (held_by := _held_by(process.pid)):
            evidence.held_by = held_by
            evidence.native = _native_stack(process.pid)
            return False
    if hasattr(signal, "SIGUSR1") and os.path.exists(files.stack):
        process.send_signal(signal.SIGUSR1)
        _wait_for_dump(process, files.stack)
    if step.evidence:
        evidence.native = _native_stack(process.pid)
        evidence.workers = _worker_stacks(process.pid, files)
    return True


def _bound_output(files: StepFiles, kept: dict[str, str]) -> None:
    """A step that prints without end must not fill the disk; the files are appended to, so they start anew.

    Their last lines are *kept*: they may have been the step's last words.
    """
    for path in (files.stdout, files.stderr):
        if os.path.getsize(path) > _MOST_OUTPUT:
            kept[path] = _tail(path)
            os.truncate(path, 0)


def _held_by(pid: int) -> str:
    """The signal that a process is held at: one of its threads has that one signal blocked, being in its handler."""
    from pytest_rlstability.isolation.kernel import FATAL_SIGNALS

    masks = {1 << (number - 1): number for number in FATAL_SIGNALS}
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):
            blocked = re.search(r"^SigBlk:\s*([0-9a-f]+)", status.read_text(), re.MULTILINE)
            if blocked and int(blocked[1], 16) in masks:
                return signal_name(-masks[int(blocked[1], 16)])
    return ""


def _native_stack(pid: int) -> str:
    from pytest_rlstability.evidence.native import native_stack

    return native_stack(pid)


def _worker_stacks(pid: int, files: StepFiles) -> str:
    from pytest_rlstability.evidence.processes import look_at_tree
    from pytest_rlstability.evidence.worker_stacks import worker_stacks

    return worker_stacks(pid, look_at_tree(pid), Path(files.directory), "auto")


def _wait_for_dump(process: subprocess.Popen[bytes], path: str) -> None:
    deadline, size = time.monotonic() + STACK_GRACE, -1
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


def _kill_escaped(directory: str) -> None:
    """Kill what left the group and its parents behind; the environment it was born with gives it away."""
    mark = f"{_MARK}={directory}".encode()
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return
    for pid in pids:
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb") as stream:
                if mark in stream.read().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)


def read_stages(lines: Iterable[str]) -> tuple[StageRecord, ...]:
    """What a step's breadcrumbs say; a line that a crash cut short is left out.

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

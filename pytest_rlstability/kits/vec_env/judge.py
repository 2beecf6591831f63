"""The verdicts on workers that died or do not answer: pure functions of what is known about them."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from pytest_rlstability.model.units import format_duration
from pytest_rlstability.model.verdict import Location, StallClass, Verdict, Word
from pytest_rlstability.osinfo.fatal_signals import signal_name

_COMMANDS = {"_call": "call", "_setattr": "set_attr"}
"""Methods of Gymnasium's vector env, by the command that they send."""
_HINTS: dict[int, str] = {
    9: "SIGKILL comes from outside the worker: the kernel was short of memory, or something killed it.",
    signal.SIGTERM: "SIGTERM comes from outside the worker.",
}


@dataclass(frozen=True)
class WorkerFacts:
    """What is known about one worker."""

    index: int
    count: int
    pid: int
    command: str
    stack: str
    location: Location | None = None
    """The line of the user's code that the worker was in."""

    @property
    def name(self) -> str:
        return f"worker {self.index} (pid {self.pid})"

    @property
    def call(self) -> str:
        return f"{_COMMANDS.get(self.command, self.command)}()" if self.command else "its work"

    @property
    def identity(self) -> dict[str, str | int | float]:
        return {"worker": self.index, "worker_pid": self.pid}


def judge_dead(worker: WorkerFacts, exit_code: int | None) -> Verdict:
    """The verdict on a worker that ended with *exit_code*: negative for a signal, None when something else reaped it.

    >>> judge_dead(WorkerFacts(1, 4, 77, "step", ""), -11).title
    'CRASH: vector env worker 1 (pid 77) died of SIGSEGV in step()'
    """
    facts = worker.identity
    if exit_code is None:
        how, hint = "ended", "Its exit status is unknown: something else waited for it."
    elif exit_code < 0:
        how, hint = f"died of {signal_name(-exit_code)}", _HINTS.get(-exit_code, "")
        facts["signal"] = signal_name(-exit_code)
    else:
        how, hint = f"exited with status {exit_code}", "Something in it called os._exit() or sys.exit()."
        facts["exit_code"] = exit_code
    note = f"{worker.count} workers, counted from 0.{f' {hint}' if hint else ''}"
    return Verdict(
        Word.CRASH,
        f"vector env {worker.name} {how} in {worker.call}",
        sections=(("", note), (f"Python stack of {worker.name}", worker.stack)),
        facts=facts,
        location=worker.location,
    )


def judge_stuck(workers: list[WorkerFacts], doing: list[str], limit: float) -> Verdict:
    """The verdict on silent workers, of which the first was waited for. Each of *doing* is ``spinning``, ``blocked`` or
    ``stopped``.

    >>> judge_stuck([WorkerFacts(0, 2, 77, "step", "")], ["stopped"], 30).title
    'STALL: vector env worker 0 (pid 77) did not answer step() within 30 s: it is stopped'
    """
    first, also = workers[0], [worker.name for worker in workers[1:]]
    note = f"{first.count} workers, counted from 0." + (f" Silent as well: {', '.join(also)}." if also else "")
    found = zip(workers, doing, strict=True)
    return Verdict(
        Word.STALL,
        f"vector env {first.name} did not answer {first.call} within {format_duration(limit)}: it is {doing[0]}",
        sections=(("", note), *((f"Python stack of {worker.name}, {how}", worker.stack) for worker, how in found)),
        facts={**first.identity, "class": doing[0] if doing[0] == StallClass.SPINNING else StallClass.BLOCKED},
        location=first.location,
    )

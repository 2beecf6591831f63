"""A run that did not end as a run must: what killed it, where, and under what name to file it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pytest_rlstability.events import Fact, Section, Verdict
from pytest_rlstability.evidence.stacks import Frame, StackDump, parse_dump
from pytest_rlstability.facts import Record, Run
from pytest_rlstability.isolation.kernel import signal_name
from pytest_rlstability.isolation.wire import UNHEARD
from pytest_rlstability.units import format_size

PHASE_WORDS = {
    "start": "before set-up",
    "setup": "in set-up",
    "call": "in call",
    "teardown": "in tear-down",
    "exit": "at exit",
}


def judge_crash(run: Run) -> Verdict | None:
    """CRASH when the process died or had to be ended for memory, or when a worker of a failed test died."""
    if run.killed is not None and run.killed.reason != "memory":
        return None
    if not run.passed_the_rule:
        return _process_died(run)
    if any("verdict" in report.get("rl_stability", {}) for report in run.reports):
        return None  # the test has said itself what is wrong
    if _failed(run) and run.dead_workers:
        return _worker_died(run)
    if run.memory_limit is not None and _raised_memory_error(run):
        return _over_the_cap(run)
    return None


def _process_died(run: Run) -> Verdict:
    dump = parse_dump(run.dump, run.threads)
    cause = _cause(run, dump)
    crashed = dump.crashed
    frames = crashed.own_frames if crashed else ()
    return Verdict(
        "CRASH",
        f"{cause} {place_of(run)}",
        sections=present(
            ("", where(frames)),
            ("", _between_tests(run)),
            ("Stages", stages_text(run)),
            ("Memory", run.memory.text()),
            ("Python stacks", dump.render()),
            ("Native stack", run.native),
            ("Dead workers", _workers_text(run.dead_workers)),
            ("Process", f"{process_text(run)}\n{_native_text(dump)}".strip()),
        ),
        facts={
            "class": _class_of(run, dump),
            "signal": dump.signal or _status_name(run),
            "signature": signature(dump.signal or cause, run.phase, frames),
            **shared_facts(run),
        },
    )


def _between_tests(run: Run) -> str:
    """A shared process that dies between two tests: the second reports it, but the first is the suspect."""
    if run.phase != "start" or not run.after:
        return ""
    return f"this test had not begun; its process died after {run.after} had ended: look at what that left running"


def _native_text(dump: StackDump) -> str:
    return f"native code loaded: {', '.join(dump.packages)}" if dump.packages else ""


def _worker_died(run: Run) -> Verdict:
    worker = run.dead_workers[0]
    others = len(run.dead_workers) - 1
    frames = (parse_dump(worker["stack"]).crashed or _NOBODY).own_frames
    phase = _failed_phase(run)
    return Verdict(
        "CRASH",
        f"worker process {worker['name']} (pid {worker['pid']}) died by {worker['signal']} {PHASE_WORDS[phase]}"
        + (f", and {others} more" if others else ""),
        sections=present(
            ("", where(frames)),
            ("Dead workers", _workers_text(run.dead_workers)),
            ("Stages", stages_text(run)),
            ("Memory", run.memory.text()),
            ("The test then failed with", _first_failure(run)),
            ("Process", process_text(run)),
        ),
        facts={
            "class": "worker",
            "signal": worker["signal"],
            "signature": signature(f"worker {worker['signal']}", phase, frames),
            **shared_facts(run),
            "phase": phase,
        },
    )


def _over_the_cap(run: Run) -> Verdict:
    return Verdict(
        "CRASH",
        f"out of memory {PHASE_WORDS[_failed_phase(run)]}: the limit is {format_size(run.memory_limit or 0)}",
        sections=present(
            ("Stages", stages_text(run)),
            ("Memory", run.memory.text()),
            ("The test failed with", _first_failure(run)),
            ("Process", process_text(run)),
        ),
        facts={
            "class": "memory",
            "signal": "MemoryError",
            "signature": signature("out of memory", run.phase, ()),
            **shared_facts(run),
            "phase": _failed_phase(run),
        },
    )


def signature(cause: str, phase: str, frames: Sequence[Frame]) -> str:
    """A name for this kind of crash that stays the same from run to run and machine to machine.

    >>> signature("SIGSEGV", "call", [Frame("/a/env.py", 7, "step"), Frame("/a/test_env.py", 3, "test_env")])
    'SIGSEGV call step<test_env f7d5d165'
    """
    top = list(frames)[:3]
    chain = "<".join(frame.function for frame in top)
    files = "<".join(f"{frame.file.replace(chr(92), '/').rpartition('/')[2]}:{frame.function}" for frame in top)
    digest = hashlib.sha256(f"{cause}|{phase}|{files}".encode()).hexdigest()[:8]
    return " ".join(part for part in (cause, phase, chain, digest) if part)


def stages_text(run: Run) -> str:
    """The breadcrumbs of ``rl_stage``: what was done, and what the test was in."""
    lines = [f"done     {stage}" for stage in run.stages_done]
    if run.stages_open:
        lines.append(f"died in  {' > '.join(run.stages_open)}")
    return "\n".join(lines)


def _cause(run: Run, dump: StackDump) -> str:
    if run.killed is not None:
        return f"killed for memory ({run.killed.detail})"
    if dump.signal:
        return dump.signal
    if run.exit is None or run.exit.status is None:
        return "lost with the process that started it"
    status = run.exit.status
    if run.killed_by_kernel:
        return "killed for memory by the kernel (SIGKILL)"
    if status < 0:
        return _status_name(run)
    if run.done and run.clean:
        return f"exit code {status}"
    if status == UNHEARD and not run.done:
        return "closed the descriptors that its reports go through, noticed"
    return f"ended itself with exit code {status}"


def _class_of(run: Run, dump: StackDump) -> str:
    """``memory``, ``signal`` or ``exit``; ``lost`` when nobody saw how the process ended."""
    if run.killed is not None or run.killed_by_kernel:
        return "memory"
    status = None if run.exit is None else run.exit.status
    if dump.signal or (status or 0) < 0:
        return "signal"
    return "lost" if status is None else "exit"


def _status_name(run: Run) -> str:
    if run.exit is None or run.exit.status is None:
        return ""
    if run.exit.status >= 0:
        return f"exit {run.exit.status}"
    return signal_name(-run.exit.status)


def place_of(run: Run) -> str:
    place = PHASE_WORDS[run.phase]
    if run.stages_open:
        place += f", stage {run.stages_open[-1]!r}"
    if run.lap and run.phase == "call":
        place += f", lap {run.lap}"
    return place


def where(frames: Sequence[Frame]) -> str:
    """The newest line of the user's own code, and what it had called."""
    if not frames:
        return ""
    own = next((frame for frame in frames if frame.is_users), frames[0])
    inside = "" if own is frames[0] else f", inside {frames[0].function} ({frames[0].file}:{frames[0].line})"
    return f"at {own.file}:{own.line} in {own.function}{inside}"


def _workers_text(workers: list[Record]) -> str:
    blocks = []
    for worker in workers:
        lines = [f"{worker['name']} (pid {worker['pid']}): {worker['signal']}"]
        if worker["stack"]:
            lines += [f"  {line}" for line in parse_dump(worker["stack"]).render().splitlines()]
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def process_text(run: Run) -> str:
    parts = [f"pid {run.pid}", f"backend {run.backend}", f"seed {run.seed}"]
    if run.exit is not None and run.exit.peak:
        parts.append(f"peak memory {format_size(run.exit.peak)}")
    return ", ".join(parts)


def shared_facts(run: Run) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"phase": run.phase}
    if run.stages_open:
        facts["stage"] = " > ".join(run.stages_open)
    if run.lap:
        facts["laps"] = run.lap
    return facts


def _failed(run: Run) -> bool:
    return any(report["outcome"] == "failed" for report in run.reports)


def _failed_phase(run: Run) -> str:
    return next(str(report["when"]) for report in run.reports if report["outcome"] == "failed")


def _first_failure(run: Run) -> str:
    """The last line of the first failed report: the exception it failed with."""
    for report in run.reports:
        if report["outcome"] == "failed":
            longrepr = report["longrepr"]
            if isinstance(longrepr, dict) and longrepr.get("reprcrash"):
                crash = longrepr["reprcrash"]
                return f"{crash['path']}:{crash['lineno']}: {crash['message']}"
            return str(longrepr)
    return ""


def _raised_memory_error(run: Run) -> bool:
    return "MemoryError" in _first_failure(run)


def present(*sections: Section) -> tuple[Section, ...]:
    return tuple(section for section in sections if section[1])


class _Nobody:
    own_frames: tuple[Frame, ...] = ()


_NOBODY = _Nobody()

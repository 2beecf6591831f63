"""CRASH: a test process that died or had to be ended. What killed it, where, and the signature of that crash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pytest_rlstability.model.messages import NOT_DELIVERED, Json
from pytest_rlstability.model.run import Run
from pytest_rlstability.model.stack_dump import Frame, StackDump, parse_dump
from pytest_rlstability.model.units import format_size
from pytest_rlstability.model.verdict import CrashClass, Fact, Location, Section, Verdict, Word
from pytest_rlstability.osinfo.fatal_signals import signal_name

PHASE_WORDS = {
    "start": "before set-up",
    "setup": "in set-up",
    "call": "in call",
    "teardown": "in tear-down",
    "exit": "at exit",
}


def judge_crash(run: Run) -> Verdict | None:
    """CRASH when the process died or had to be ended, or when a worker of a failed test died."""
    if run.ending.killed is not None and run.ending.killed.reason in ("stall", "timeout"):
        return None
    if not run.completed_cleanly:
        return _process_died(run)
    if any("verdict" in report.get("rl_stability", {}) for report in run.seen.reports):
        return None  # the test raised a verdict of its own
    failed = next((report for report in run.seen.reports if report["outcome"] == "failed"), None)
    if failed is not None and run.seen.dead_workers:
        return _worker_died(run, failed)
    return _over_the_cap(run, failed)


def _process_died(run: Run) -> Verdict:
    dump = parse_dump(run.ending.dump, run.ending.thread_names)
    cause, frames = _cause(run, dump), dump.crashed_frames
    stable_cause = dump.signal or cause.partition(" (")[0]  # without what was measured
    native = f"native code loaded: {', '.join(dump.packages)}" if dump.packages else ""
    return Verdict(
        Word.CRASH,
        f"{cause} {place_of(run)}",
        sections=present(
            ("", where(frames)),
            ("", _between_tests(run)),
            ("Stages", stages_text(run)),
            ("Memory", run.seen.memory.text()),
            ("Python stacks", dump.render()),
            ("Native stack", run.ending.native_stack),
            ("Dead workers", _workers_text(run)),
            ("Process", f"{process_text(run)}\n{native}".strip()),
        ),
        facts={
            "class": _class_of(run, dump),
            "signal": dump.signal or _status_name(run),
            "signature": signature(stable_cause, run.seen.phase, frames),
            **shared_facts(run),
        },
        location=location_in(frames),
    )


def _between_tests(run: Run) -> str:
    """A shared process that dies between two tests: the second reports it, but the first is the suspect."""
    before = run.spec.previous_test
    if run.seen.phase != "start" or not before:
        return ""
    return f"this test had not begun; its process died after {before} had ended: look at what that left running"


def _worker_died(run: Run, failed: Json) -> Verdict:
    worker, *others = run.seen.dead_workers.values()
    frames, phase = parse_dump(worker.stack).crashed_frames, failed["when"]
    return Verdict(
        Word.CRASH,
        f"worker process {worker.name} (pid {worker.pid}) died by {worker.signal} {PHASE_WORDS[phase]}"
        + (f", and {len(others)} more" if others else ""),
        sections=present(
            ("", where(frames)),
            ("Dead workers", _workers_text(run)),
            ("Stages", stages_text(run)),
            ("Memory", run.seen.memory.text()),
            ("The test then failed with", _failure_text(failed)),
            ("Process", process_text(run)),
        ),
        facts={
            "class": CrashClass.WORKER,
            "signal": worker.signal,
            "signature": signature(f"worker {worker.signal}", phase, frames),
            **shared_facts(run),
            "phase": phase,
        },
        location=location_in(frames),
    )


def _over_the_cap(run: Run, failed: Json | None) -> Verdict | None:
    """CRASH when the test used more memory than it may, or the cap made it fail."""
    limit = run.spec.memory_limit
    if limit is None:
        return None
    stopped = failed is not None and "MemoryError" in _failure_text(failed)
    if not stopped and run.peak_memory <= limit:
        return None
    phase = failed["when"] if failed is not None else "call"
    used = "" if stopped else f" ({format_size(run.peak_memory)} used)"
    place = _crash_of(failed) if failed is not None else None
    return Verdict(
        Word.CRASH,
        f"out of memory {PHASE_WORDS[phase]}: the limit is {format_size(limit)}{used}",
        sections=present(
            ("Stages", stages_text(run)),
            ("Memory", run.seen.memory.text()),
            ("The test failed with", "" if failed is None else _failure_text(failed)),
            ("Process", process_text(run)),
        ),
        facts={
            "class": CrashClass.MEMORY,
            "signal": "MemoryError",
            "signature": signature("out of memory", phase, ()),
            **shared_facts(run),
            "phase": phase,
        },
        location=Location(place["path"], place["lineno"]) if place else None,
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
    """The stages that ``rl_stage`` recorded: those done, and the one the test died in."""
    lines = [f"done     {stage}" for stage in run.seen.stages_done]
    if run.seen.stages_open:
        lines.append(f"died in  {' > '.join(run.seen.stages_open)}")
    return "\n".join(lines)


def _cause(run: Run, dump: StackDump) -> str:
    if run.ending.killed is not None:
        return f"killed for {run.ending.killed.reason} ({run.ending.killed.detail})"
    if dump.signal:
        return dump.signal
    if (status := _status(run)) is None:
        return "exit status unknown: its parent died"
    if run.ending.killed_by_kernel:
        return "killed for memory by the kernel (SIGKILL)"
    if status < 0:
        return _status_name(run)
    if run.seen.done and run.seen.clean_exit:
        return f"exit code {status}"
    if status == NOT_DELIVERED and not run.seen.done:
        return "closed the descriptors that its reports go through, noticed"
    return f"ended itself with exit code {status}"


def _class_of(run: Run, dump: StackDump) -> CrashClass:
    if run.ending.killed is not None and run.ending.killed.reason != "memory":
        return CrashClass.WATCHDOG
    if run.ending.killed is not None or run.ending.killed_by_kernel:
        return CrashClass.MEMORY
    status = _status(run)
    if dump.signal or (status or 0) < 0:
        return CrashClass.SIGNAL
    return CrashClass.LOST if status is None else CrashClass.EXIT


def _status(run: Run) -> int | None:
    return None if run.ending.exit is None else run.ending.exit.status


def _status_name(run: Run) -> str:
    if (status := _status(run)) is None:
        return ""
    return f"exit {status}" if status >= 0 else signal_name(-status)


def place_of(run: Run) -> str:
    place = PHASE_WORDS[run.seen.phase]
    if run.seen.stages_open:
        place += f", stage {run.seen.stages_open[-1]!r}"
    if run.seen.lap and run.seen.phase == "call":
        place += f", lap {run.seen.lap}"
    return place


def location_in(frames: Sequence[Frame]) -> Location | None:
    """The newest line of the user's own code, or the newest line of all if none is the user's."""
    if not frames:
        return None
    own = next((frame for frame in frames if frame.is_users), frames[0])
    return Location(own.file, own.line, own.function)


def where(frames: Sequence[Frame]) -> str:
    """The newest line of the user's own code, and what it had called."""
    location = location_in(frames)
    if location is None:
        return ""
    newest = Location(frames[0].file, frames[0].line, frames[0].function)
    inside = "" if newest == location else f", inside {newest.function} ({newest.file}:{newest.line})"
    return f"at {location}{inside}"


def _workers_text(run: Run) -> str:
    blocks = []
    for worker in run.seen.dead_workers.values():
        lines = [f"{worker.name} (pid {worker.pid}): {worker.signal}"]
        if worker.stack:
            lines += [f"  {line}" for line in parse_dump(worker.stack).render().splitlines()]
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def process_text(run: Run) -> str:
    parts = [f"pid {run.seen.pid}", f"backend {run.spec.backend}", f"seed {run.spec.seed}"]
    if run.peak_memory:
        parts.append(f"peak memory {format_size(run.peak_memory)}")
    return ", ".join(parts)


def shared_facts(run: Run) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"phase": run.seen.phase}
    if run.seen.stages_open:
        facts["stage"] = " > ".join(run.seen.stages_open)
    if run.seen.lap:
        facts["laps"] = run.seen.lap
    return facts


def _failure_text(report: Json) -> str:
    """The exception that *report* failed with, and its place."""
    crash = _crash_of(report)
    return f"{crash['path']}:{crash['lineno']}: {crash['message']}" if crash else str(report["longrepr"])


def _crash_of(report: Json) -> Json | None:
    """Where and with what *report* failed, if pytest knows."""
    longrepr = report["longrepr"]
    return longrepr.get("reprcrash") if isinstance(longrepr, dict) else None


def present(*sections: Section) -> tuple[Section, ...]:
    return tuple(section for section in sections if section[1])

"""CRASH: a test process that died or had to be ended. What killed it, where, and the signature of that crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_rlstability.model.messages import NOT_DELIVERED, Json
from pytest_rlstability.model.run import Run
from pytest_rlstability.model.stack_dump import Frame, StackDump, parse_dump
from pytest_rlstability.model.units import format_size
from pytest_rlstability.model.user_code import package_path
from pytest_rlstability.model.verdict import CrashClass, Fact, Location, Section, Verdict, Word
from pytest_rlstability.osinfo.fatal_signals import signal_of_exit
from pytest_rlstability.verdicts.signatures import signature

PHASE_WORDS = {
    "start": "before set-up",
    "setup": "in set-up",
    "call": "in call",
    "teardown": "in tear-down",
    "exit": "at exit",
    "import": "at import",
}

_MOST_LEFT = 10


def judge_crash(run: Run) -> Verdict | None:
    """CRASH when the process died or had to be ended, or when a worker of a failed test died."""
    if run.ending.killed is not None and run.ending.killed.reason in ("stall", "timeout"):
        return None
    if not run.completed_cleanly:
        return judge_dead_process(run)
    if any("verdict" in report.get("rl_stability", {}) for report in run.seen.reports):
        return None  # the test raised a verdict of its own
    failed = next((report for report in run.seen.reports if report["outcome"] == "failed"), None)
    if failed is not None and run.seen.dead_workers:
        return judge_dead_worker(run, _failure_text(failed), failed["when"])
    return _over_the_cap(run, failed)


def judge_dead_process(run: Run) -> Verdict:
    """CRASH: the process died, or had to be ended."""
    dump = parse_dump(run.ending.dump, run.ending.thread_names)
    kind, cause = _end_of(run, dump)
    frames = [frame for frame in dump.crashed_frames if not package_path(frame.file)]
    signal = dump.signal or ("" if run.ending.killed and not _status(run) else _status_name(_status(run)))
    verdict = build_verdict(
        run,
        Word.CRASH,
        f"{cause} {place_of(run)}",
        cause=dump.signal or cause.partition(" (")[0],  # without what was measured
        frames=frames,
        first=[("", _between_tests(run)), ("", "" if frames else _native_place(run.ending.native_stack))],
        more=[
            ("Python stacks", dump.render()),
            ("Native stack", run.ending.native_stack),
            ("Native code loaded", ", ".join(dump.packages)),
            ("Dead workers", workers_text(run)),
        ],
        facts={"class": kind, **({"signal": signal} if signal else {})},
        native=run.ending.native_stack if dump.signal else "",
    )
    main = next((thread for thread in dump.threads if len(dump.threads) == 1 or thread.name == "MainThread"), None)
    if verdict.location is None and main is not None:  # it was ended from outside, while this ran
        users = [frame for frame in main.own_frames if frame.is_users]
        verdict = replace(verdict, location=location_in(users))
    return verdict


def _native_place(stack: str) -> str:
    """The newest line of a native stack that is not the C library's. For a crash that no Python code has led to."""
    for line in stack.splitlines():
        function, _, file = line.strip().partition(" at ")
        if "libffi" in file:
            break  # from here on it is our call
        if file and function != "??" and not file.startswith((".", "/usr/", "/lib", "libc.so")):
            return f"in {function} at {file}"
    return ""


def _between_tests(run: Run) -> str:
    """A shared process that dies between two tests: the second reports it, but the first is the suspect."""
    before = run.spec.previous_test
    if run.seen.phase != "start" or not before:
        return ""
    return f"this test had not begun; its process died after {before} had ended: look at what that left running"


def judge_dead_worker(run: Run, failure: str, phase: str = "call") -> Verdict:
    """CRASH: a worker died by a signal, and then the test or script failed."""
    worker, *others = run.seen.dead_workers.values()
    who = "The script" if run.spec.is_script else "The test"
    return build_verdict(
        run,
        Word.CRASH,
        f"worker process {worker.name} (pid {worker.pid}) died by {worker.signal} {phase_words(run, phase)}"
        + (f", and {len(others)} more" if others else ""),
        cause=f"worker {worker.signal}",
        frames=parse_dump(worker.stack).crashed_frames,
        first=[("Dead workers", workers_text(run))],
        more=[(f"{who} then failed with", failure)],
        facts={"class": CrashClass.WORKER, "signal": worker.signal, "phase": phase},
    )


def _over_the_cap(run: Run, failed: Json | None) -> Verdict | None:
    """CRASH when the test used more memory than it may, or the cap made it fail."""
    limit, why = run.spec.memory_limit, "" if failed is None else _failure_text(failed)
    stopped = "MemoryError" in why
    if limit is None or not (stopped or run.peak_memory > limit):
        return None
    phase = "call" if failed is None else failed["when"]
    used = "" if stopped else f" ({format_size(run.peak_memory)} used)"
    verdict = build_verdict(
        run,
        Word.CRASH,
        f"out of memory {PHASE_WORDS[phase]}: the limit is {format_size(limit)}{used}",
        cause="out of memory",
        more=[("The test failed with", why)],
        facts={"class": CrashClass.MEMORY, "signal": "MemoryError", "phase": phase},
    )
    place = None if failed is None else _crash_of(failed)
    return replace(verdict, location=Location(place["path"], place["lineno"])) if place else verdict


def build_verdict(
    run: Run,
    word: Word,
    headline: str,
    *,
    cause: str,
    frames: Sequence[Frame] = (),
    first: Sequence[Section] = (),
    more: Sequence[Section] = (),
    facts: Mapping[str, Fact],
    native: str = "",
) -> Verdict:
    """A verdict with what every report on *run* shows besides: place, stages, memory and process.

    *cause* is the part of the signature that does not change from run to run; *native* is the stack to add to it.
    """
    known = {**shared_facts(run), **facts}
    sections = (
        ("", _where(frames)),
        *first,
        ("Stages", _stages_text(run)),
        ("Left in this process by earlier tests", _left_before(run)),
        ("Memory", run.seen.memory.text()),
        *more,
        ("Process", _process_text(run)),
    )
    return Verdict(
        word,
        headline,
        sections=tuple(section for section in sections if section[1]),
        facts={**known, "signature": signature(cause, str(known["phase"]), frames, native)},
        location=location_in(frames),
    )


def _left_before(run: Run) -> str:
    """What earlier tests left in the process, the newest last."""
    lines = run.ending.left_before
    more = [f"({len(lines) - _MOST_LEFT} more)"] if len(lines) > _MOST_LEFT else []
    return "\n".join([*more, *lines[-_MOST_LEFT:]])


def _stages_text(run: Run) -> str:
    """The stages that ``rl_stage`` recorded: those done, and the one the test died in."""
    lines = [f"done     {stage}" for stage in run.seen.stages_done]
    if run.seen.stages_open:
        lines.append(f"died in  {' > '.join(run.seen.stages_open)}")
    return "\n".join(lines)


def _end_of(run: Run, dump: StackDump) -> tuple[CrashClass, str]:
    """How the process ended: the class, and the cause in words."""
    killed, status = run.ending.killed, _status(run)
    if killed is not None:
        kind = CrashClass.MEMORY if killed.reason == "memory" else CrashClass.WATCHDOG
        return kind, f"killed for {killed.reason} ({killed.detail})"
    if dump.signal:
        return CrashClass.SIGNAL, dump.signal
    if status is None:
        return CrashClass.LOST, "exit status unknown: its parent died"
    if run.ending.killed_by_kernel:
        return CrashClass.MEMORY, "killed for memory by the kernel (SIGKILL)"
    if signal := signal_of_exit(status):
        return CrashClass.SIGNAL, signal
    if run.seen.done and run.seen.clean_exit:
        return CrashClass.EXIT, f"exit code {status}"
    if status == NOT_DELIVERED and not run.seen.done:
        return CrashClass.EXIT, "closed the descriptors that its reports go through, noticed"
    return CrashClass.EXIT, f"ended itself with exit code {status}"


def _status(run: Run) -> int | None:
    return None if run.ending.exit is None else run.ending.exit.status


def _status_name(status: int | None) -> str:
    if status is None:
        return ""
    return signal_of_exit(status) or f"exit {status}"


def place_of(run: Run) -> str:
    place = phase_words(run, run.seen.phase)
    if run.seen.fixture:
        place += f" of fixture {run.seen.fixture!r}"
    if run.seen.stages_open:
        place += f", stage {run.seen.stages_open[-1]!r}"
    if run.seen.lap and run.seen.phase == "call":
        place += f", lap {run.seen.lap}"
    return place


def phase_words(run: Run, phase: str) -> str:
    """``in set-up``; a script has no phases but its end."""
    return PHASE_WORDS[phase] if not run.spec.is_script or phase == "exit" else "in the script"


def location_in(frames: Sequence[Frame]) -> Location | None:
    """The newest line of the user's own code, or the newest line of all if none is the user's."""
    if not frames:
        return None
    own = next((frame for frame in frames if frame.is_users), frames[0])
    return Location(own.file, own.line, own.function)


def _where(frames: Sequence[Frame]) -> str:
    """The newest line of the user's own code, and what it had called."""
    location = location_in(frames)
    if location is None:
        return ""
    newest = Location(frames[0].file, frames[0].line, frames[0].function)
    inside = "" if newest == location else f", inside {newest.function} ({newest.file}:{newest.line})"
    return f"at {location}{inside}"


def workers_text(run: Run) -> str:
    """The workers that died by a signal, with their stacks."""
    blocks = []
    for worker in run.seen.dead_workers.values():
        lines = [f"{worker.name} (pid {worker.pid}): {worker.signal}"]
        if worker.stack:
            lines += [f"  {line}" for line in parse_dump(worker.stack).render().splitlines()]
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def _process_text(run: Run) -> str:
    parts = [f"pid {run.seen.pid}"]
    if not run.spec.is_script:
        parts += [f"backend {run.spec.backend}", f"seed {run.spec.seed}"]
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

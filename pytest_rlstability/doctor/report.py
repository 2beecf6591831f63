"""The examination as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from pytest_rlstability.doctor.advice import Advice
from pytest_rlstability.doctor.checks.libraries import openmp_family
from pytest_rlstability.doctor.examination import YOUR_STAGES, Examination, Examiner, StepReport
from pytest_rlstability.doctor.facts import Facts
from pytest_rlstability.model.units import escaped, format_duration, format_size
from pytest_rlstability.steps import StageRecord

SCHEMA = 1

_OWN_WORDS = {"ok": "works", "crash": "dies here", "hang": "hangs here", "error": "raises here"}
_STAGE_WORDS = {"done": "works", "raised": "raises here"}


def as_json(examination: Examination) -> str:
    """One object; ``schema`` goes up when a key changes its meaning."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "ok": not examination.failed,
            "facts": examination.facts,
            "steps": [asdict(step) for step in examination.steps],
            "advice": [asdict(advice) for advice in examination.advice],
        },
        indent=2,
    )


def facts_lines(facts: Facts) -> Iterator[str]:
    """The facts of the machine that are known before the first step."""
    for name, text in (
        ("system", _system(facts)),
        ("python", _python(facts)),
        ("processor", _processor(facts)),
        ("memory", _memory(facts)),
        ("limits", _limits(facts)),
        ("stacks", _stacks(facts)),
        ("cuda", ", ".join([*facts["cuda"]["libraries"], *facts["cuda"]["devices"]]) or "none"),
        ("variables", " ".join(f"{name}={value}" for name, value in facts["variables"].items()) or "none set"),
        ("libraries", ", ".join(f"{name} {version}" for name, version in facts["distributions"].items()) or "none"),
    ):
        yield escaped(f"  {name:<10} {text}")


def _system(facts: Facts) -> str:
    wsl = f"WSL{facts['wsl']}" if facts["wsl"] else ""
    container = f"in a container ({facts['container']})" if facts["container"] else ""
    return ", ".join(filter(None, (facts["system"], facts["machine"], facts["libc"], wsl, container)))


def _python(facts: Facts) -> str:
    python = facts["python"]
    kinds = [word for word in ("debug", "free_threaded") if python[word]]
    build = ", ".join([f"{python['bits']} bit", *kinds, python["compiler"]])
    # A link may have the name of another version.
    link = f" -> {python['real_executable']}" if python["real_executable"] != python["executable"] else ""
    return f"{python['implementation']} {python['version']} ({build}), {python['executable']}{link}"


def _processor(facts: Facts) -> str:
    limit = f", {facts['cpu_limit']:g} by the container's limit" if facts["cpu_limit"] else ""
    flags = " ".join(facts["cpu_flags"]) if facts["cpu_flags_known"] else "flags unknown"
    return f"{facts['cpu_model']}, {facts['cpus_allowed']} of {facts['cpus']} may be used{limit}; {flags or 'no AVX'}"


def _memory(facts: Facts) -> str:
    titles = {"memory": "", "memory_available": "available ", "memory_limit": "limit ", "shm_bytes": "/dev/shm "}
    return ", ".join(f"{title}{format_size(facts[name])}" for name, title in titles.items() if facts[name] is not None)


def _limits(facts: Facts) -> str:
    def shown(name: str, value: int | None) -> object:
        return "unlimited" if value is None else value if name in ("nofile", "nproc") else format_size(value)

    return ", ".join(f"{name} {shown(name, value)}" for name, value in facts["limits"].items()) or "unknown"


def _stacks(facts: Facts) -> str:
    tools = [name for name, path in facts["tools"].items() if path] or ["no tool for native stacks"]
    scope = "" if facts["ptrace_scope"] is None else f", ptrace_scope {facts['ptrace_scope']}"
    core = f", core pattern {facts['core_pattern']}" if facts["core_pattern"] else ""
    return ", ".join(tools) + scope + core


def found_lines(facts: Facts) -> Iterator[str]:
    """The facts that the steps found: the libraries that are loaded together in one process, and whether forks work."""
    if openmp := facts.get("openmp"):
        families = [f"lib{openmp_family(path)} of {_owner(path)}" for path in openmp]
        yield escaped(f"  openmp     {len(openmp)} in one process: {', '.join(families)}")
    if blas := facts.get("blas"):
        yield escaped(f"  blas       {', '.join(path.rpartition('/')[2] for path in blas)}")
    if fork := facts.get("fork_after_threads"):
        yield f"  fork       after torch's threads: {fork}"


def _owner(path: str) -> str:
    """The package that a library file came with."""
    inside = path.rpartition("-packages/")[2]
    return inside.partition("/")[0].removesuffix(".libs") if inside != path else path


def step_lines(step: StepReport) -> Iterator[str]:
    """A step's line in the table, and the lines of its stages if it failed or is the user's."""
    own = step.group == YOUR_STAGES
    word = _OWN_WORDS[step.state] if own else step.state
    if step.state in ("not installed", "not run"):
        yield f"  {'-':<11} {step.name}: {escaped(step.headline)}"
        return
    where = f" in {step.where}" if step.where else ""
    note = escaped(f"  {step.headline}{where}") if step.failed else f" {step.version}".rstrip()
    yield f"  {word:<11} {escaped(step.name)}{note}  ({format_duration(step.seconds)})"
    if own or step.failed:
        for stage in step.stages:
            yield f"  {'':<11}   {_stage_word(stage, step):<11} {escaped(stage.name)}"


def _stage_word(stage: StageRecord, step: StepReport) -> str:
    return _STAGE_WORDS.get(stage.state) or _OWN_WORDS[step.state if step.failed else "crash"]


def detail_lines(step: StepReport) -> Iterator[str]:
    """The stacks and the output of a step that failed."""
    yield f"--- {step.name}: {step.state}, {escaped(step.headline)}"
    for title, text in (
        ("Python stack", step.stack),
        ("workers", step.workers),
        ("native stack", step.native),
        ("output", step.output),
    ):
        if text.strip():
            yield f"{title}:"
            yield from (f"  {escaped(line)}" for line in text.strip("\n").splitlines())


def text_lines(examiner: Examiner, reports: Iterable[StepReport]) -> Iterator[str]:
    """The whole text, each line as soon as it is known."""
    yield "machine"
    yield from facts_lines(examiner.found.facts)
    group = ""
    for step in reports:
        if step.group != group:
            group = step.group
            yield from ("", group.replace("-", " "))
        yield from step_lines(step)
    yield from _closing_lines(examiner.found)


def _closing_lines(examination: Examination) -> Iterator[str]:
    """The sections below the table, and the summary."""
    for title, lines in (
        ("found", list(found_lines(examination.facts))),
        ("failures", [line for step in examination.failed for line in detail_lines(step)]),
        ("advice", [line for advice in examination.advice for line in _advice_lines(advice)]),
    ):
        if lines:
            yield from ("", title, *lines)
    yield from ("", summary(examination))


def _advice_lines(advice: Advice) -> Iterator[str]:
    yield escaped(f"  * {advice.found} [{advice.name}]")
    yield escaped(f"    {advice.do}")


def summary(examination: Examination) -> str:
    """The last line: what failed, or that nothing did."""
    states, failed = [step.state for step in examination.steps], examination.failed
    skipped = states.count("not run")
    ran = len(states) - skipped - states.count("not installed")
    if not failed:
        return f"{ran} steps, none failed"
    names = "; ".join(f"{step.name} ({step.state}: {escaped(step.headline)})" for step in failed)
    rest = f"; {skipped} skipped as a result" if skipped else ""
    return f"{len(failed)} of {ran} steps failed: {names}{rest}"

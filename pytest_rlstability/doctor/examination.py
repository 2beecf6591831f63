"""The examination: facts, every step in a process of its own, and the advice that follows."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from pytest_rlstability.doctor import step_list
from pytest_rlstability.doctor.advice import Advice, advise
from pytest_rlstability.doctor.facts import Facts, gather_facts
from pytest_rlstability.doctor.plugins import other_plugins, shipped_steps
from pytest_rlstability.model.stack_dump import Frame, parse_dump
from pytest_rlstability.model.user_code import Origin, origin
from pytest_rlstability.steps import Outcome, StageRecord, Step, run_step
from pytest_rlstability.steps.doctor_step import DoctorStep

State = Literal["ok", "crash", "hang", "error", "not installed", "not run"]

YOUR_STAGES = "your-stages"

_STATES: dict[str, State] = {"ok": "ok", "crash": "crash", "hang": "hang", "raised": "error"}
_OUTPUT_LINES = 15
_TRACEBACK_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)\n(?:    .*\n)*', re.MULTILINE)


@dataclass(frozen=True)
class StepReport:
    """How one step ended: *state* is ``not run`` when a library that the step needs cannot be imported."""

    name: str
    group: str
    state: State
    headline: str = ""
    signal: str = ""
    where: str = ""
    seconds: float = 0.0
    version: str = ""
    stages: tuple[StageRecord, ...] = ()
    stack: str = ""
    workers: str = ""
    native: str = ""
    output: str = ""

    @property
    def failed(self) -> bool:
        return self.state in ("crash", "hang", "error")


@dataclass
class Examination:
    """Everything found. ``examination.failed`` decides the exit code."""

    facts: Facts = field(default_factory=dict)
    steps: list[StepReport] = field(default_factory=list)

    @property
    def failed(self) -> list[StepReport]:
        return [step for step in self.steps if step.failed]

    @property
    def advice(self) -> list[Advice]:
        return advise(self.facts)


class Examiner:
    """Runs steps one after the other, each in a process of its own and for at most *limit* seconds.

    The facts are known once it is made. *scratch* is the steps' directory for temporary files: what one of them leaves
    behind when it dies goes with it. With *plugins* the steps of other plugins are loaded.
    """

    def __init__(self, scratch: str, limit: float, *, plugins: bool = True) -> None:
        self._scratch, self._limit = scratch, limit
        self._steps = shipped_steps()
        self._broken: list[str] = []
        self._early = self._load_plugins() if plugins else []
        self.groups = step_list.groups_of(self._steps)
        self.found = Examination(gather_facts())
        self._early += self._survey()

    def run(self, groups: Iterable[str], targets: Iterable[str] = ()) -> Iterator[StepReport]:
        """Run the steps of *groups*, then the user's *targets*. What failed before comes first."""
        for report in chain(self._early, self._run_groups(groups), self._run_targets(targets)):
            self.found.steps.append(report)
            yield report

    def expected_steps(self, groups: Iterable[str]) -> int:
        """About how many steps ``run`` will take."""
        return sum(len(self._steps_of(group)) for group in groups)

    def _load_plugins(self) -> list[StepReport]:
        """Add the steps of other plugins; those that cannot be loaded are failed steps."""
        failures = []
        for module in other_plugins():
            call = "pytest_rlstability.doctor.plugins:load_plugin"
            outcome = self._run(DoctorStep(f"plugin {module}", "plugins", call, arguments={"module": module}))
            if outcome.ending == "ok":
                self._steps += [DoctorStep(**{**data, "needs": tuple(data["needs"])}) for data in outcome.result]
            else:
                failures.append(report_of("plugins", outcome))
        return failures

    def _survey(self) -> list[StepReport]:
        """Find out which libraries are installed. A Python that cannot look for them is a failed step."""
        modules = list(dict.fromkeys([*step_list.MODULES, *step_list.needed_by(self._steps)]))
        arguments = {"modules": modules, "distributions": step_list.DISTRIBUTIONS}
        call = "pytest_rlstability.doctor.checks.libraries:survey"
        outcome = self._run(DoctorStep("start Python", step_list.IMPORTS, call, arguments=arguments))
        if outcome.ending == "ok":
            self.found.facts.update(outcome.result)
            return []
        self.found.facts.update({"modules": modules, "distributions": {}})
        return [report_of(step_list.IMPORTS, outcome)]

    def _run_groups(self, groups: Iterable[str]) -> Iterator[StepReport]:
        for group in groups:
            for step in self._steps_of(group):
                yield from self._run_step(step)

    def _steps_of(self, group: str) -> list[DoctorStep]:
        steps, installed = [step for step in self._steps if step.group == group], self.found.facts["modules"]
        if group == step_list.IMPORTS:
            steps += step_list.import_steps(self._steps, installed)
        if group == step_list.IMPORT_ORDER:
            working = [module for module in installed if module not in self._broken]
            steps += step_list.order_steps(step_list.needed_by(self._steps), working)
        return steps

    def _run_targets(self, targets: Iterable[str]) -> Iterator[StepReport]:
        path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
        call = "pytest_rlstability.doctor.checks.user:run_stage"
        for target in targets:
            step = DoctorStep(target, YOUR_STAGES, call, arguments={"target": target})
            yield report_of(YOUR_STAGES, self._run(step, os.getcwd(), PYTHONPATH=path))

    def _run_step(self, step: DoctorStep) -> Iterator[StepReport]:
        if missing := [module for module in step.needs if module not in self.found.facts["modules"]]:
            yield StepReport(step.name, step.group, "not installed", f"{', '.join(missing)} not installed")
            return
        if blockers := step_list.blockers_of(step, self._broken):
            reason = f"not run, import {' and '.join(blockers)} fails"
            yield StepReport(step.name, step.group, "not run", reason)
            return
        outcome = self._run(step)
        self._learn(outcome)
        yield report_of(step.group, outcome)
        if step.imports and outcome.ending != "ok":
            self._broken.append(step.imports)
        for pair in step_list.follow_up(step, outcome):
            yield from self._run_step(pair)

    def _run(self, step: DoctorStep, directory: str = "", **environment: str) -> Outcome:
        environment["TMPDIR"] = self._scratch
        return run_step(
            Step(
                step.name, call=step.call, arguments=step.arguments, timeout=self._limit, environment=environment,
                directory=directory or self._scratch, evidence=True,
            )
        )  # fmt: skip

    def _learn(self, outcome: Outcome) -> None:
        """Keep what a step found out; of libraries loaded together, the process with the most of them."""
        facts, result = self.found.facts, outcome.result
        if not isinstance(result, dict):
            return
        if "fork_after_threads" in result:
            facts["fork_after_threads"] = result["fork_after_threads"]
        for name in ("openmp", "blas"):
            if len(result.get(name, [])) > len(facts.setdefault(name, [])):
                facts[name] = result[name]


def report_of(group: str, outcome: Outcome) -> StepReport:
    """The report of a step that was run. A library that is not installed has not failed."""
    name = outcome.name
    if outcome.ending == "ok":
        version = outcome.result.get("version", "") if isinstance(outcome.result, dict) else ""
        return StepReport(name, group, "ok", "ok", seconds=outcome.seconds, version=version, stages=outcome.stages)
    missing = name.removeprefix("import ")
    if group == step_list.IMPORTS and outcome.error == f"ModuleNotFoundError: No module named {missing!r}":
        return StepReport(name, group, "not installed", f"{missing} not installed")
    return StepReport(
        name, group, _STATES[outcome.ending], outcome.headline(), signal=outcome.signal, where=place_of(outcome),
        seconds=outcome.seconds, stages=outcome.stages, stack=stack_of(outcome), workers=outcome.workers,
        native=outcome.native, output=_last_lines(outcome),
    )  # fmt: skip


def _last_lines(outcome: Outcome) -> str:
    lines = [*outcome.stdout.splitlines()[-_OUTPUT_LINES:], *outcome.stderr.splitlines()[-_OUTPUT_LINES:]]
    return "\n".join(line[:400] for line in lines if line.strip())


def place_of(outcome: Outcome) -> str:
    """``torch/__init__.py:3 in <module>``: the newest line outside the standard library, ``""`` when none is known."""
    frames = [frame for frame in _frames(outcome) if not frame.is_machinery]
    shown = [frame for frame in frames if origin(frame.file) is not Origin.STANDARD_LIBRARY]
    shown = shown or [frame for frame in frames if not frame.file.startswith("<frozen")]
    return f"{_shorten(shown[0].file)}:{shown[0].line} in {shown[0].function}" if shown else ""


def stack_of(outcome: Outcome) -> str:
    """The Python stack for a person: the threads of a dump, or a traceback without the code that called the step."""
    if outcome.ending == "raised":
        return _TRACEBACK_FRAME.sub(lambda found: "" if _frame(found).is_machinery else found[0], outcome.stack)
    lines = parse_dump(outcome.stack).render().splitlines()
    return "\n".join(line for line in lines if 'File "<frozen importlib' not in line)


def _frames(outcome: Outcome) -> list[Frame]:
    """The frames of the thread that crashed, else of the main thread (the last of a dump), newest first."""
    if outcome.ending == "raised":
        return [_frame(found) for found in _TRACEBACK_FRAME.finditer(outcome.stack)][::-1]
    dump = parse_dump(outcome.stack)
    thread = dump.crashed or (dump.threads[-1] if dump.threads else None)
    return list(thread.frames) if thread else []


def _frame(found: re.Match[str]) -> Frame:
    return Frame(found[1], int(found[2]), found[3])


def _shorten(file: str) -> str:
    """The path from ``site-packages`` or the current directory on, where it lies in one of them."""
    for parent in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), os.getcwd()):
        if file.startswith(parent + os.sep):
            return file[len(parent) + 1 :]
    return file

"""The examination: facts, every step in a process of its own, and the advice that follows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_rlstability.doctor import step_list
from pytest_rlstability.doctor.advice import Advice, advise
from pytest_rlstability.doctor.facts import Facts, gather_facts
from pytest_rlstability.doctor.places import place_of, stack_of
from pytest_rlstability.doctor.plugins import other_plugins, shipped_steps, step_from
from pytest_rlstability.steps import Outcome, StageRecord, Step, run_step
from pytest_rlstability.steps.doctor_step import DoctorStep

State = Literal["ok", "crash", "hang", "error", "not installed", "not run"]

YOUR_STAGES = "your-stages"

_STATES: dict[str, State] = {"ok": "ok", "crash": "crash", "hang": "hang", "raised": "error"}
_OUTPUT_LINES = 15


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
    advice: list[Advice] = field(default_factory=list)

    @property
    def failed(self) -> list[StepReport]:
        return [step for step in self.steps if step.failed]


class UnknownGroupError(ValueError):
    """A group without steps was asked for; the text says which groups there are."""


def examine(
    groups: Collection[str] | None = None,
    targets: Sequence[str] = (),
    *,
    limit: float = 120.0,
    on_facts: Callable[[Facts], None] = lambda facts: None,
    on_step: Callable[[StepReport], None] = lambda report: None,
) -> Examination:
    """Gather the facts, run the steps of *groups* (None: all) and then the user's *targets*, one after the other.

    ``examine(groups=["physics"]).failed`` is empty when Box2D works here. *limit* is each step's own, in seconds.
    """
    # Not in pytest's or the user's temporary directory: what a step leaves there when it dies goes with this one.
    with tempfile.TemporaryDirectory(prefix="rlstability-doctor-", ignore_cleanup_errors=True) as scratch:
        examiner = _Examiner(scratch, limit, on_step)
        failures = [] if groups == () else examiner.load_plugins()
        wanted = examiner.check_groups(groups)
        survey = examiner.take_facts()
        on_facts(examiner.found.facts)
        for failure in [*failures, *survey]:
            examiner.note(failure)
        examiner.run_groups(wanted)
        examiner.run_targets(targets)
    found = examiner.found
    found.advice = advise(found.facts)
    return found


class _Examiner:
    def __init__(self, scratch: str, limit: float, on_step: Callable[[StepReport], None]) -> None:
        self.found = Examination()
        self._steps = shipped_steps()
        self._broken: list[str] = []
        self._scratch, self._limit, self._on_step = scratch, limit, on_step

    def load_plugins(self) -> list[StepReport]:
        """Add the steps of other plugins; those that cannot be loaded are failed steps."""
        failures = []
        for module in other_plugins():
            call = "pytest_rlstability.doctor.plugins:load_plugin"
            outcome = self._run(DoctorStep(f"plugin {module}", "plugins", call, arguments={"module": module}))
            if outcome.ending == "ok":
                self._steps += map(step_from, outcome.result)
            else:
                failures.append(report_of("plugins", outcome))
        return failures

    def check_groups(self, groups: Collection[str] | None) -> list[str]:
        """The *groups* in the order in which they are run."""
        known = step_list.groups_of(self._steps)
        for group in groups or ():
            if group not in known:
                raise UnknownGroupError(f"{group!r} (choose from {', '.join(known)})")
        return [group for group in known if groups is None or group in groups]

    def take_facts(self) -> list[StepReport]:
        """Gather the facts of the machine and its libraries. A Python that cannot look for them is a failed step."""
        self.found.facts = gather_facts()
        modules = list(dict.fromkeys([*step_list.MODULES, *step_list.needed_by(self._steps)]))
        arguments = {"modules": modules, "distributions": step_list.DISTRIBUTIONS}
        call = "pytest_rlstability.doctor.checks.libraries:survey"
        outcome = self._run(DoctorStep("start Python", step_list.IMPORTS, call, arguments=arguments))
        if outcome.ending == "ok":
            self.found.facts.update(outcome.result)
            return []
        self.found.facts.update({"modules": modules, "distributions": {}})
        return [report_of(step_list.IMPORTS, outcome)]

    def run_groups(self, groups: Sequence[str]) -> None:
        installed = self.found.facts["modules"]
        for group in groups:
            for step in self._steps_of(group, installed):
                self._run_step(step, installed)

    def _steps_of(self, group: str, installed: Collection[str]) -> list[DoctorStep]:
        steps = [step for step in self._steps if step.group == group]
        if group == step_list.IMPORTS:
            steps += step_list.import_steps(self._steps, installed)
        if group == step_list.IMPORT_ORDER:
            working = [module for module in installed if module not in self._broken]
            steps += step_list.order_steps(step_list.needed_by(self._steps), working)
        return steps

    def run_targets(self, targets: Iterable[str]) -> None:
        path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
        call = "pytest_rlstability.doctor.checks.user:run_stage"
        for target in targets:
            step = DoctorStep(target, YOUR_STAGES, call, arguments={"target": target})
            self.note(report_of(YOUR_STAGES, self._run(step, os.getcwd(), PYTHONPATH=path)))

    def _run_step(self, step: DoctorStep, installed: Collection[str]) -> None:
        if missing := step.missing(installed):
            self.note(StepReport(step.name, step.group, "not installed", f"{', '.join(missing)} not installed"))
            return
        if blockers := step_list.blockers_of(step, self._broken):
            reason = f"not run, import {' and '.join(blockers)} fails"
            self.note(StepReport(step.name, step.group, "not run", reason))
            return
        outcome = self._run(step)
        self._learn(outcome)
        self.note(report_of(step.group, outcome))
        if step.imports and outcome.ending != "ok":
            self._broken.append(step.imports)
        for pair in step_list.follow_up(step, outcome):
            self._run_step(pair, installed)

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
        for name in ("torch", "fork_after_threads", "thread_pools"):
            if result.get(name):
                facts[name] = result[name]
        for name in ("openmp", "blas"):
            if len(result.get(name, [])) > len(facts.setdefault(name, [])):
                facts[name] = result[name]

    def note(self, report: StepReport) -> None:
        self.found.steps.append(report)
        self._on_step(report)


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

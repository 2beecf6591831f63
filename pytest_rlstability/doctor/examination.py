"""The examination: facts, every step in a process of its own, and the advice that follows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_rlstability.doctor.advice import Advice, advise
from pytest_rlstability.doctor.facts import Facts, gather_facts
from pytest_rlstability.doctor.places import place_of, stack_of
from pytest_rlstability.doctor.probes import (
    DISTRIBUTIONS,
    GROUPS,
    MODULES,
    Probe,
    all_probes,
    follow_up,
    order_probes,
)
from pytest_rlstability.steps import Outcome, StageRecord, Step, run_step

State = Literal["ok", "crash", "hang", "error", "not installed", "not run"]

YOUR_STAGES = "your-stages"

_STATES: dict[str, State] = {"ok": "ok", "crash": "crash", "hang": "hang", "raised": "error"}
_OUTPUT_LINES = 15


@dataclass(frozen=True)
class StepReport:
    """How one step ended: ``report.state`` is ``ok``, ``crash``, ``hang``, ``error``,
    ``not installed``, or ``not run`` when a library that it needs fails by itself."""

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


Listener = Callable[[StepReport], None]


def examine(
    groups: Collection[str] = GROUPS,
    targets: Sequence[str] = (),
    *,
    limit: float = 120.0,
    on_facts: Callable[[Facts], None] = lambda facts: None,
    on_step: Listener = lambda report: None,
) -> Examination:
    """Gather the facts, run the steps of *groups* and then the user's *targets*, one after the other.

    ``examine(groups=["physics"]).failed`` is empty when Box2D works here. *limit* is each step's own, in seconds.
    """
    # Not in pytest's or the user's temporary directory: what a step leaves there when it dies goes with this one.
    with tempfile.TemporaryDirectory(prefix="rlstability-doctor-", ignore_cleanup_errors=True) as scratch:
        examiner = _Examiner(scratch, limit, on_step)
        examiner.take_facts()
        on_facts(examiner.found.facts)
        examiner.run_probes(groups)
        examiner.run_targets(targets)
    found = examiner.found
    found.advice = advise(found.facts)
    return found


class _Examiner:
    def __init__(self, scratch: str, limit: float, on_step: Listener) -> None:
        self.found = Examination()
        self._broken: list[str] = []
        self._scratch, self._limit, self._on_step = scratch, limit, on_step

    def take_facts(self) -> None:
        """Facts of the machine, and which libraries there are; a Python that cannot even look is a failed step."""
        self.found.facts = gather_facts()
        survey = Probe("start Python", "imports", "libraries:survey", (),
                       {"modules": MODULES, "distributions": DISTRIBUTIONS})  # fmt: skip
        outcome = self._run(survey)
        if outcome.ending == "ok":
            self.found.facts.update(outcome.result)
        else:
            self._note(report_of(survey.name, survey.group, outcome))
            self.found.facts.update({"modules": list(MODULES), "distributions": {}})

    def run_probes(self, groups: Collection[str]) -> None:
        installed = self.found.facts["modules"]
        for group in GROUPS:
            if group in groups:
                for probe in self._probes_of(group, installed):
                    self._run_probe(probe, installed)

    def _probes_of(self, group: str, installed: Collection[str]) -> list[Probe]:
        if group == "import-order":
            return list(order_probes([module for module in installed if module not in self._broken]))
        return [probe for probe in all_probes(installed) if probe.group == group]

    def run_targets(self, targets: Iterable[str]) -> None:
        path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
        for target in targets:
            step = Step(
                target, call="pytest_rlstability.doctor.checks.user:run_stage", arguments={"target": target},
                timeout=self._limit, environment={"TMPDIR": self._scratch, "PYTHONPATH": path}, evidence=True,
            )  # fmt: skip
            self._note(report_of(target, YOUR_STAGES, run_step(step)))

    def _run_probe(self, probe: Probe, installed: Collection[str]) -> None:
        if missing := probe.missing(installed):
            self._note(StepReport(probe.name, probe.group, "not installed", f"{', '.join(missing)} not installed"))
            return
        if blockers := probe.blocked_by(self._broken):
            reason = f"not run, import {' and '.join(blockers)} fails"
            self._note(StepReport(probe.name, probe.group, "not run", reason))
            return
        outcome = self._run(probe)
        self._learn(outcome)
        self._note(report_of(probe.name, probe.group, outcome))
        if probe.imports and outcome.ending != "ok":
            self._broken.append(probe.imports)
        for pair in follow_up(probe, outcome):
            self._run_probe(pair, installed)

    def _run(self, probe: Probe) -> Outcome:
        return run_step(
            Step(
                probe.name, call=probe.function, arguments=probe.arguments, timeout=self._limit,
                environment={"TMPDIR": self._scratch}, directory=self._scratch, evidence=True,
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

    def _note(self, report: StepReport) -> None:
        self.found.steps.append(report)
        self._on_step(report)


def report_of(name: str, group: str, outcome: Outcome) -> StepReport:
    """What *outcome* comes to; a library that was looked for and is not there has not failed."""
    version = outcome.result.get("version", "") if isinstance(outcome.result, dict) else ""
    if outcome.ending == "ok":
        return StepReport(name, group, "ok", "ok", seconds=outcome.seconds, version=version, stages=outcome.stages)
    missing = name.removeprefix("import ")
    if group == "imports" and outcome.error == f"ModuleNotFoundError: No module named {missing!r}":
        return StepReport(name, group, "not installed", f"{missing} not installed")
    return StepReport(
        name, group, _STATES[outcome.ending], outcome.headline(), signal=outcome.signal, where=place_of(outcome),
        seconds=outcome.seconds, stages=outcome.stages, stack=stack_of(outcome), workers=outcome.workers,
        native=outcome.native, output=_last_lines(outcome),
    )  # fmt: skip


def _last_lines(outcome: Outcome) -> str:
    lines = [*outcome.stdout.splitlines()[-_OUTPUT_LINES:], *outcome.stderr.splitlines()[-_OUTPUT_LINES:]]
    return "\n".join(line[:400] for line in lines if line.strip())

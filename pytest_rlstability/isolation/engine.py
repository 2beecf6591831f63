"""The engine: takes each test from pytest, has it run in a process of its own, and hands back what came of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from contextlib import closing, nullcontext
from dataclasses import dataclass

import pytest

from pytest_rlstability.beacon import is_test_process
from pytest_rlstability.facts import Exit, Record, Run
from pytest_rlstability.isolation.coverage import collect_coverage
from pytest_rlstability.isolation.hub import Hub, TestProcess
from pytest_rlstability.isolation.nursery import Nursery
from pytest_rlstability.isolation.plan import Plan, plan_for
from pytest_rlstability.isolation.protocol import Backend, Demand
from pytest_rlstability.isolation.repeater import Repeater, free_cores
from pytest_rlstability.isolation.spawn import SpawnBackend
from pytest_rlstability.isolation.stall_watch import StallWatch
from pytest_rlstability.isolation.supervisor import Job, Supervisor
from pytest_rlstability.isolation.timeouts import outside_limits, uses_alarm
from pytest_rlstability.isolation.watch import MemoryCap, Watch
from pytest_rlstability.options import Settings, settings_of
from pytest_rlstability.reports.desk import Desk
from pytest_rlstability.reports.repeated import replay_trials
from pytest_rlstability.reports.replay import replay, report_internal_error, summary, warn
from pytest_rlstability.reports.verdict_report import stability_of
from pytest_rlstability.soak.ending import ended_by_sigterm
from pytest_rlstability.soak.progress import SoakPulse
from pytest_rlstability.soak.thinning import Thinning
from pytest_rlstability.verdicts import judge
from pytest_rlstability.verdicts.flaky import Trial, Trials

CANARY_LIMIT = 5.0


@dataclass
class Unit:
    """A process that tests of one group share, and goes on after the one it runs."""

    group: str
    nursery: Nursery
    process: TestProcess
    last: pytest.Item
    """The test that it ran last."""


class Engine:
    """One per pytest process that runs tests."""

    def __init__(self, session: pytest.Session, settings: Settings, desk: Desk) -> None:
        self._session = session
        self._desk = desk
        self._settings = settings
        self._plans: dict[pytest.Item, Plan] = {}
        self._nurseries: dict[str, Nursery] = {}
        self._unit: Unit | None = None
        self.reason_against_fork = ""
        self._hub = Hub()
        self._supervisor = Supervisor(self._hub, settings.native, self._tell_sample)

    def start(self) -> None:
        """Make what must exist before the first fork, and find out whether forking is safe."""
        factory = getattr(self._session.config, "_tmp_path_factory", None)
        if factory is not None:
            factory.getbasetemp()
        backends = {self._plan(item).backend for item in self._session.items if self._plan(item).isolate}
        if backends & {"auto", "zygote"}:
            self.reason_against_fork = reason_against_fork() or self._ask_canary()

    def stop(self) -> None:
        """End every process of the run and remove its files."""
        self._leave_unit()
        collect_coverage(self._hub.directory)
        for nursery in self._nurseries.values():
            nursery.stop()
        self._hub.close()

    def isolates(self, item: pytest.Item) -> bool:
        """Whether *item* runs in a process of ours."""
        plan = self._plan(item)
        return plan.isolate and plan.backend != "inprocess"

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run *item*; False when it is not ours to run."""
        if not self.isolates(item):
            return False
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        run: Run | None = None
        try:
            plan = self._plan(item)
            run = self._isolate(item, nextitem, plan) if plan.flaky is None else self._repeat(item, nextitem, plan)
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except Exception:
            report_internal_error(item)
        if run is not None and run.interrupted:
            raise KeyboardInterrupt
        if run is not None and run.stop is not None:
            pytest.exit(run.stop["reason"], run.stop["code"])
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _isolate(self, item: pytest.Item, nextitem: pytest.Item | None, plan: Plan) -> Run:
        """Run *item* once, and report it."""
        nursery, process, after = self._process_for(item, plan)
        follower = nextitem if nextitem is not None and self._shares(plan, nextitem) else None
        job = self._job(item, plan, nursery, process, self._settings.seed)
        job.run.shared, job.run.after = follower is not None, after
        self._tell_started(job.run)
        self._hand_over(item, follower, plan, job)
        self._prewarm(nextitem if follower is None else None)
        with ended_by_sigterm() if plan.soak is not None else nullcontext():
            self._supervisor.supervise(job)
        if process.exit is None:
            assert plan.group is not None
            self._unit = Unit(plan.group, nursery, process, item)
        else:
            self._unit = None
            nursery.bury(process)
        if _ended_in_order(job.run):
            reports = replay(item, job.run, judge(job.run), self._settings)
            self._report(item, reports, summary(job.run, reports))
        return job.run

    def _repeat(self, item: pytest.Item, nextitem: pytest.Item | None, plan: Plan) -> Run:
        """Run *item* until its promised pass rate is kept or broken, and report that once."""
        assert plan.flaky is not None
        self._leave_unit()
        trials = Trials(plan.flaky, expected_to_fail=item.get_closest_marker("xfail") is not None)
        with closing(self._runs(item, plan, trials)) as runs:
            for run in runs:
                if not _ended_in_order(run):
                    return run
                self._tell_trial(trials.add(run, judge(run)))
                if trials.stands_aside or trials.answer != "open":
                    break
        self._prewarm(nextitem)
        run, reports = replay_trials(item, trials, self._settings)
        facts = {} if trials.stands_aside else trials.facts()
        self._report(item, reports, {**summary(run, reports), **facts})
        return run

    def _runs(self, item: pytest.Item, plan: Plan, trials: Trials) -> Generator[Run]:
        nursery = self._nursery(plan)

        def demand(seed: int) -> Demand:
            return nursery.backend.demand(item, self._environment(plan, seed))

        def start(process: TestProcess, seed: int) -> Job:
            job = self._job(item, plan, nursery, process, seed)
            if not trials.trials and seed == self._settings.seed:
                self._tell_started(job.run)
            self._hand_over(item, None, plan, job)
            return job

        at_once = 1 if self._settings.flaky == "serial" else free_cores()
        repeater = Repeater(self._supervisor, nursery, demand, start, seed=self._settings.seed, at_once=at_once)
        return repeater.runs(lambda: trials.wanted)

    def _environment(self, plan: Plan, seed: int) -> tuple[tuple[str, str], ...]:
        """A run with a seed of its own hashes by it too, as it does when that seed is given for the whole session."""
        if seed == self._settings.seed or "PYTHONHASHSEED" in {**os.environ, **dict(plan.environment)}:
            return plan.environment
        return (*plan.environment, ("PYTHONHASHSEED", str(seed % 2**32)))

    def _job(self, item: pytest.Item, plan: Plan, nursery: Nursery, process: TestProcess, seed: int) -> Job:
        run = Run(
            nodeid=item.nodeid,
            backend=nursery.backend.name,
            seed=seed,
            pid=process.pid,
            started=time.time(),
            memory_limit=plan.memory,
            repeated=plan.flaky is not None,
            thinning=Thinning(self._desk.workers),
        )
        watches = self._watches(item, plan)
        if plan.soak is not None:
            watches.append(SoakPulse(run, plan.soak.duration, self._note_progress))
        return Job(nursery, process, run, watches)

    def _watches(self, item: pytest.Item, plan: Plan) -> list[Watch]:
        watches: list[Watch] = outside_limits(item, self._hub.directory)
        if plan.stall_after > 0:
            watches.append(
                StallWatch(
                    plan.stall_after,
                    self._hub.directory,
                    lambda text: self._desk.note("slow", item.nodeid, text=text),
                    native=self._settings.native,
                    alarm_is_ours=uses_alarm(item),
                )
            )
        if plan.memory is not None:
            watches.append(MemoryCap(plan.memory))
        return watches

    def _hand_over(self, item: pytest.Item, follower: pytest.Item | None, plan: Plan, job: Job) -> None:
        if job.process.wire is None:
            return
        backend = job.nursery.backend
        job.process.wire.send(
            {
                "item": backend.name_of(item),
                "next": None if follower is None else backend.name_of(follower),
                "seed": job.run.seed,
                "failed": self._session.testsfailed,
                "memory": plan.memory,
                "exit_check": plan.exit_check,
                "repeated": job.run.repeated,
            }
        )

    def _process_for(self, item: pytest.Item, plan: Plan) -> tuple[Nursery, TestProcess, str]:
        """The process of the test's group, and the test that ran in it before; else a new one.

        One that has died meanwhile is handed out as well: somebody has to report it.
        """
        if self._unit is not None:
            unit = self._unit
            if unit.group == plan.group:
                unit.process.slot.clear()
                return unit.nursery, unit.process, unit.last.nodeid
            self._leave_unit()
        nursery = self._nursery(plan)
        return nursery, nursery.take(nursery.backend.demand(item, plan.environment)), ""

    def _leave_unit(self) -> None:
        """The group's process was told to expect another test that never came: let it tear down and end."""
        unit, self._unit = self._unit, None
        if unit is None:
            return
        process = unit.process
        if process.wire is not None:
            process.wire.send({"item": None})
        self._hub.wait_until(lambda: process.exit is not None or bool(process.fault), 10.0)
        unit.nursery.end(process)
        self._hub.wait_until(lambda: process.exit is not None, 10.0)
        unit.nursery.bury(process)
        self._warn_of_death(unit)

    def _warn_of_death(self, unit: Unit) -> None:
        """Every test of the group has been reported: what goes wrong after that is nobody's failure, but is told."""
        process = unit.process
        run = self._job(unit.last, self._plan(unit.last), unit.nursery, process, self._settings.seed).run
        for record in process.take_records():
            run.hear(record)
        run.done, run.phase, run.exit = True, process.slot.phase, process.exit or Exit(None)
        run.dump, run.threads = process.fault.decode(errors="replace"), process.threads
        if (verdict := judge(run)) is not None:
            warn(unit.last, f"the process that {unit.last.nodeid} was the last to run in: {verdict.text()}")

    def _shares(self, plan: Plan, nextitem: pytest.Item) -> bool:
        return plan.group is not None and self.isolates(nextitem) and self._plan(nextitem).group == plan.group

    def _prewarm(self, nextitem: pytest.Item | None) -> None:
        if nextitem is None:
            return
        if self.isolates(nextitem):
            plan = self._plan(nextitem)
            nursery = self._nursery(plan)
            nursery.prewarm(nursery.backend.demand(nextitem, plan.environment))

    def _plan(self, item: pytest.Item) -> Plan:
        if item not in self._plans:
            self._plans[item] = plan_for(item, self._settings)
        return self._plans[item]

    def _nursery(self, plan: Plan) -> Nursery:
        name = plan.backend
        if name == "auto":
            name = "spawn" if self.reason_against_fork else "zygote"
        if name not in self._nurseries:
            self._nurseries[name] = Nursery(self._hub, self._backend(name))
        return self._nurseries[name]

    def _backend(self, name: str) -> Backend:
        hold = sys.platform == "linux" and self._settings.native != "off"
        if name == "zygote":
            from pytest_rlstability.isolation.zygote import ZygoteBackend

            return ZygoteBackend(self._session, self._hub, hold=hold, seed=self._settings.seed)
        return SpawnBackend(self._session, self._hub, hold=hold, seed=self._settings.seed)

    def _ask_canary(self) -> str:
        """Have a forked process use the native threads this one may have used, and see whether it comes back."""
        nursery = Nursery(self._hub, self._backend("zygote"))
        self._nurseries["zygote"] = nursery
        if nursery.sing(CANARY_LIMIT):
            return ""
        return "a forked process hangs or dies in its first parallel computation (threads were used before the fork)"

    def _note_progress(self, run: Run, note: Record) -> None:
        self._desk.note("progress", run.nodeid, **note)

    def _tell_sample(self, run: Run, sample: Record) -> None:
        """Pass on a sample. A soak's come often, for those who watch it live; fewer are enough to keep."""
        if run.repeated:
            return  # samples of runs side by side are no course of anything
        if "soak" in sample and "judged" not in sample and not run.thinning.keeps(sample["seconds"]):
            return
        kept = {key: value for key, value in sample.items() if key not in ("kind", "soak")}
        self._desk.tell("sample", run.nodeid, **kept)

    def _tell_started(self, run: Run) -> None:
        self._desk.tell("started", run.nodeid, pid=run.pid, backend=run.backend, seed=run.seed)

    def _tell_trial(self, trial: Trial) -> None:
        """A run of a repeated test is to it what a lap is to a leak test."""
        run = trial.run
        values = {
            "run_passed": float(trial.outcome == "passed"),
            "run_seconds": run.ended - run.started,
            "peak_memory": float(run.exit.peak if run.exit else 0),
        }
        self._desk.tell("sample", run.nodeid, lap=trial.number, seed=run.seed, values=values)

    def _report(self, item: pytest.Item, reports: list[pytest.TestReport], finished: dict[str, object]) -> None:
        self._desk.tell("finished", item.nodeid, **finished)
        stability_of(reports[-1])["events"] = self._desk.take_waiting()
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)


def _ended_in_order(run: Run) -> bool:
    """Whether *run* is the test's to report: not one that ends the session."""
    if run.fault:
        raise RuntimeError(f"in the test's process:\n{run.fault}")
    return not (run.stop or run.interrupted)


def engine_for(session: pytest.Session) -> Engine | None:
    """A started engine; None in a process that runs no tests of its own, or is a test's itself."""
    config = session.config
    settings = settings_of(config)
    is_controller = config.pluginmanager.hasplugin("dsession")
    if not settings.enabled or is_test_process(config) or is_controller or config.option.collectonly:
        return None
    engine = Engine(session, settings, config.pluginmanager.getplugin("rlstability-desk"))
    try:
        engine.start()
    except BaseException:
        engine.stop()
        raise
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if engine.reason_against_fork and reporter is not None:
        reporter.ensure_newline()
        reporter.write_line(f"rl-stability: spawn backend, because {engine.reason_against_fork}")
    return engine


def reason_against_fork() -> str:
    """Why processes of this platform or state cannot be forked safely; empty when they can."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return f"forking is not safe on {sys.platform}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialised, and does not survive a fork"
    return ""

"""The engine: takes each test from pytest, has it run in a process of its own, and hands back what came of it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, nullcontext

import pytest

from pytest_rlstability.beacon import is_test_process
from pytest_rlstability.facts import Record, Run
from pytest_rlstability.isolation.ahead import all_passed
from pytest_rlstability.isolation.coverage import collect_coverage
from pytest_rlstability.isolation.dispatch import Dispatch
from pytest_rlstability.isolation.hub import Hub, TestProcess
from pytest_rlstability.isolation.repeater import Repeater, free_cores
from pytest_rlstability.isolation.supervisor import Job, Supervisor
from pytest_rlstability.options import Settings, settings_of
from pytest_rlstability.reports.desk import Desk
from pytest_rlstability.reports.repeated import replay_trials
from pytest_rlstability.reports.replay import replay, report_internal_error, summary
from pytest_rlstability.reports.verdict_report import stability_of
from pytest_rlstability.soak.ending import ended_by_sigterm
from pytest_rlstability.verdicts import judge
from pytest_rlstability.verdicts.flaky import Trial, Trials


class Engine:
    """One per pytest process that runs tests."""

    def __init__(self, session: pytest.Session, settings: Settings, desk: Desk) -> None:
        self._desk = desk
        self._settings = settings
        self._hub = Hub()
        self._supervisor = Supervisor(self._hub, settings.native, self._tell_sample)
        self._dispatch = Dispatch(session, settings, desk, self._hub, self._supervisor)

    def start(self) -> str:
        """Get ready; why tests are not forked, if they are not."""
        self._dispatch.start()
        return self._dispatch.reason_against_fork

    def stop(self) -> None:
        """End every process of the run and remove its files."""
        self._dispatch.leave_all()
        collect_coverage(self._hub.directory)
        self._dispatch.stop()
        self._hub.close()

    def isolates(self, item: pytest.Item) -> bool:
        """Whether *item* runs in a process of ours."""
        return self._dispatch.isolates(item)

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run *item*; False when it is not ours to run."""
        if not self.isolates(item):
            return False
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        run: Run | None = None
        try:
            repeated = self._dispatch.plan(item).flaky is not None
            run = self._repeat(item, nextitem) if repeated else self._isolate(item, nextitem)
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

    def _isolate(self, item: pytest.Item, nextitem: pytest.Item | None) -> Run:
        """Run *item* once, and report it."""
        job = self._dispatch.begin(item, nextitem)
        run = job.run
        self._tell_started(run)
        with ended_by_sigterm() if self._dispatch.plan(item).soak is not None else nullcontext():
            self._supervisor.supervise(job)
        self._dispatch.finish(item, job)
        if _ended_in_order(run):
            verdict = judge(run)
            if nextitem is not None and verdict is None and all_passed(run.reports):
                self._dispatch.begin_ahead(nextitem)
            reports = replay(item, run, verdict, self._settings)
            self._report(item, reports, summary(run, reports))
            for name, reason in run.stops.items():
                if reason and not getattr(item.session, name):
                    setattr(item.session, name, reason)
        return run

    def _repeat(self, item: pytest.Item, nextitem: pytest.Item | None) -> Run:
        """Run *item* until its promised pass rate is kept or broken, and report that once."""
        plan = self._dispatch.plan(item)
        assert plan.flaky is not None
        self._dispatch.leave_all()
        trials = Trials(plan.flaky, expected_to_fail=item.get_closest_marker("xfail") is not None)
        with closing(self._runs(item, trials)) as runs:
            for run in runs:
                if not _ended_in_order(run):
                    return run
                self._tell_trial(trials.add(run, judge(run)))
                if trials.stands_aside or trials.answer != "open":
                    break
        self._dispatch.prewarm(nextitem)
        run, reports = replay_trials(item, trials, self._settings)
        facts = {} if trials.stands_aside else trials.facts()
        self._report(item, reports, {**summary(run, reports), **facts})
        return run

    def _runs(self, item: pytest.Item, trials: Trials) -> Generator[Run]:
        nursery = self._dispatch.nursery(self._dispatch.plan(item))

        def start(process: TestProcess, seed: int) -> Job:
            job = self._dispatch.hand_over(item, nursery, process, seed)
            if not trials.trials and seed == self._settings.seed:
                self._tell_started(job.run)
            return job

        at_once = 1 if self._settings.flaky == "serial" else free_cores()
        repeater = Repeater(
            self._supervisor,
            nursery,
            lambda seed: self._dispatch.demand(item, seed),
            start,
            seed=self._settings.seed,
            at_once=at_once,
        )
        return repeater.runs(lambda: trials.wanted)

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
        reason_against_fork = engine.start()
    except BaseException:
        engine.stop()
        raise
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reason_against_fork and reporter is not None:
        reporter.ensure_newline()
        reporter.write_line(f"rl-stability: spawn backend, because {reason_against_fork}")
    return engine

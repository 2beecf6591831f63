"""Takes each test from pytest, has it run in another process, and gives pytest the reports."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Generator
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from pytest_rlstability.child.coverage import collect_coverage
from pytest_rlstability.child.verdict_report import stability_of
from pytest_rlstability.compat.pytest import GlobalCapture, base_temp, is_anything_set_up, tear_down
from pytest_rlstability.config.options import Settings, settings_of
from pytest_rlstability.model.channel import is_test_process
from pytest_rlstability.model.events import Finished, Sample, Started
from pytest_rlstability.model.messages import Sampled
from pytest_rlstability.model.run import Run, RunSpec
from pytest_rlstability.model.verdict import Verdict, is_out_of_memory
from pytest_rlstability.session.blame import Blame
from pytest_rlstability.session.connections import Connections
from pytest_rlstability.session.event_bus import EventBus
from pytest_rlstability.session.fatal_fixtures import FatalFixtures
from pytest_rlstability.session.flaky_report import replay_trials
from pytest_rlstability.session.flaky_runner import FlakyRunner, free_cores
from pytest_rlstability.session.fresh_runs import FreshRuns
from pytest_rlstability.session.launcher import TestLauncher
from pytest_rlstability.session.other_plugins.allure_results import AllureResults
from pytest_rlstability.session.overlap import known_order, may_overlap
from pytest_rlstability.session.pools import Pools, threads_at_start
from pytest_rlstability.session.preload import Preload
from pytest_rlstability.session.report_replay import (
    finished,
    replay,
    report_error,
    report_internal_error,
)
from pytest_rlstability.session.scheduler import Scheduler
from pytest_rlstability.session.shared_deaths import SharedDeaths, is_a_result
from pytest_rlstability.session.sigterm import ended_by_sigterm
from pytest_rlstability.session.supervisor import ActiveRun, Supervisor, WatchedRun
from pytest_rlstability.session.test_process import TestProcess
from pytest_rlstability.verdicts.flaky import Trial, Trials


class Engine:
    """One for each pytest process that runs tests."""

    def __init__(self, session: pytest.Session, settings: Settings, bus: EventBus) -> None:
        self._session = session
        self._settings = settings
        self._bus = bus
        self._connections = Connections()
        self._supervisor = Supervisor(self._connections, settings.native, self._emit_sample)
        self._pools = Pools(session, settings, self._connections)
        self._launcher = TestLauncher(session, settings, bus, self._connections, self._supervisor, self._pools)
        fresh_runs = FreshRuns(session, self._launcher, self._supervisor)
        self._deaths = SharedDeaths(settings, fresh_runs.run_in_order, self._report, bus.emit)
        self._launcher.on_exit = self._deaths.handle_exit
        self._scheduler: Scheduler
        self._fatal_fixtures = FatalFixtures()
        self._preload = Preload(session.config)
        self._allure = AllureResults(session.config)

    def start(self) -> str:
        """Make what must exist before the first fork; a line on which backend is used, if it is not the zygote."""
        base_temp(self._session.config)
        plans = map(self._launcher.plan, self._session.items)
        self._pools.preload = self._preload.modules(self._session.items, self._launcher.has_own_process)
        backends = {plan.backend for plan in plans if plan.isolate}
        # Not earlier: if pytest is killed before the first parent runs, nobody removes the run's directory.
        self._connections.open()
        if backends & {"auto", "zygote"}:
            for item in self._session.items:
                item.location  # noqa: B018  # kept by the item: a fork need not find it again
            self._pools.check_fork(find_other="auto" in backends)
        gc.freeze()  # all that collection made stays for the whole run: looking through it again would only take time
        overlaps = may_overlap(self._session.config)
        self._scheduler = Scheduler(self._launcher, known_order(self._session), overlaps=overlaps)
        reason = self._pools.reason_against_fork
        if reason and "auto" not in backends:
            return f"tests are forked, as asked, although {reason}"
        return f"{self._pools.auto} backend, because {reason}" if reason else ""

    def stop(self) -> None:
        """End every process of the run and remove its files."""
        gc.unfreeze()
        if hasattr(self, "_scheduler"):
            self._scheduler.drop_all()
            self._tear_down_fixtures()
            self._preload.save()
        if self._connections.is_open:
            collect_coverage(self._connections.directory)
        self._pools.stop()
        self._connections.close()

    def _tear_down_fixtures(self) -> None:
        """An error in the tear-down of wide fixtures is the last test's, as it is in pytest."""
        errors = self._launcher.tear_down_fixtures()
        item = self._launcher.last_with_fixtures
        if item is not None:
            for error in errors:
                report_error(item, error, "teardown")
        reporter = self._session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and reporter.verbosity > 0:
            for fixtures, reason in self._launcher.not_shared.items():
                reporter.ensure_newline()
                reporter.write_line(f"rl-stability: each marked test set up {', '.join(fixtures)} itself: {reason}")

    def isolates(self, item: pytest.Item) -> bool:
        """Whether *item* runs in a process of ours."""
        return self._launcher.isolates(item)

    def run(self, item: pytest.Item, next_item: pytest.Item | None) -> bool:
        """Run *item*; False when it is not ours to run."""
        if not self.isolates(item):
            self._launcher.plugins.run_here(item)
            return False
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        run: Run | None = None
        try:
            if (verdict := self._fatal_fixtures.verdict_on(item)) is not None:
                self._report_not_run(item, verdict)
            elif self._launcher.plan(item).flaky is not None:
                run = self._run_many(item, next_item)
            else:
                run = self._run_once(item, next_item)
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except Exception:
            report_internal_error(item)
        if run is not None and run.seen.interrupted:
            raise KeyboardInterrupt
        if run is not None and run.seen.session_exit is not None:
            pytest.exit(run.seen.session_exit.reason, run.seen.session_exit.code)
        self._tear_down_here(item, next_item)
        self._allure.finish(item)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _tear_down_here(self, item: pytest.Item, next_item: pytest.Item | None) -> None:
        """Tear down what tests that run in this process have set up and *next_item* does not need."""
        if not is_anything_set_up(self._session):
            return
        capture = GlobalCapture(item.config)
        capture.resume()
        try:
            tear_down(self._session, next_item)
        except Exception:
            report_error(item, traceback.format_exc(), "teardown")
        finally:
            capture.suspend()

    def _run_once(self, item: pytest.Item, next_item: pytest.Item | None) -> Run:
        """Run *item* once, and report it."""
        active = self._scheduler.begin(item, next_item)
        run = active.run
        self._emit_started(run)
        try:
            with ended_by_sigterm() if self._launcher.plan(item).soak is not None else nullcontext():
                self._supervisor.supervise(active)
        except Exception:
            self._scheduler.drop_all()  # the test runs, and nobody watches it
            raise
        self._scheduler.finish(active)
        if is_a_result(run):
            self._launcher.plugins.take(item, run, active.process)
            verdict = item.ihook.pytest_rlstability_judge(run=run)
            missing = [] if verdict is not None else run.seen.missing_phases
            if "call" in missing and getattr(item.config.option, "setuponly", False):
                missing.remove("call")
            if missing:
                raise RuntimeError(f"the test ran, but no report of its {', '.join(missing)} arrived")
            if self._launcher.reruns.wants_another(item, run, verdict):
                self._launcher.reruns.report(item, replay(item, run, verdict, self._settings))
                return self._run_once(item, next_item)
            blame: Blame | None = None
            if next_item is not None and verdict is None and run.seen.all_passed:
                self._scheduler.start_early(next_item)
            elif verdict is not None and run.ending.exit is not None and run.spec.stays:
                blame = self._deaths.find_culprit(active, active.item, verdict)
                verdict = verdict.with_note(f"{blame.text}{self._deaths.what_follows(next_item)}")
                if run.seen.fixture:
                    self._fatal_fixtures.note(item, run, verdict, dies_again=blame.culprit is item)
            elif verdict is not None and run.seen.fixture:
                self._fatal_fixtures.note(item, run, verdict, dies_again=False)
            elif verdict is not None and is_out_of_memory(verdict):
                self._scheduler.drop_all()  # the process may still hold what was too much for it
            reports = replay(item, run, verdict, self._settings, self._deaths.command(blame))
            if verdict is not None and run.seen.done is None:
                self._launcher.plugins.report_death(item, reports, verdict)
                self._allure.fill_in(item, reports, verdict)
            self._report(item, reports, finished(run, reports))
            if run.seen.tear_down_error:
                report_error(item, run.seen.tear_down_error, "teardown")
            if blame is not None and verdict is not None and blame.culprit not in (None, item):
                self._deaths.report_culprit(blame.culprit, blame, run, verdict)
            if blame is not None and blame.interrupted:
                raise KeyboardInterrupt
            if run.seen.done is not None:
                self._preload.note(item.nodeid, run.seen.done.imported)
                item.session.shouldstop = item.session.shouldstop or run.seen.done.should_stop
                item.session.shouldfail = item.session.shouldfail or run.seen.done.should_fail
        return run

    def _report_not_run(self, item: pytest.Item, verdict: Verdict) -> None:
        run = Run(RunSpec(item.nodeid, self._settings.backend, self._settings.seed))
        reports = replay(item, run, verdict, self._settings)
        self._allure.fill_in(item, reports, verdict)
        self._report(item, reports, finished(run, reports))

    def _run_many(self, item: pytest.Item, next_item: pytest.Item | None) -> Run:
        """Run *item* until its promised pass rate is kept or broken, and report that once."""
        plan = self._launcher.plan(item)
        assert plan.flaky is not None
        self._scheduler.drop_all()
        trials = Trials(plan.flaky, expected_to_fail=item.get_closest_marker("xfail") is not None)
        with closing(self._runs(item, trials)) as runs:
            for run in runs:
                if not is_a_result(run):
                    return run
                self._emit_trial(trials.add(run, item.ihook.pytest_rlstability_judge(run=run)), trials)
                if trials.stands_aside or trials.answer != "open":
                    break
        if next_item is not None:
            self._launcher.prewarm(next_item)
        run, reports = replay_trials(item, trials, self._settings)
        facts: dict[str, Any] = {} if trials.stands_aside else trials.facts()
        self._report(item, reports, replace(finished(run, reports), **facts))
        return run

    def _runs(self, item: pytest.Item, trials: Trials) -> Generator[Run]:
        def start(process: TestProcess, seed: int) -> ActiveRun:
            active = self._launcher.start_repeated(item, process, seed)
            if not trials.trials and seed == self._settings.seed:
                self._emit_started(active.run)
            return active

        runner = FlakyRunner(
            self._supervisor,
            self._launcher.pool(item),
            lambda seed: self._launcher.spec(item, seed),
            start,
            seed=self._settings.seed,
            at_once=1 if self._settings.flaky == "serial" else free_cores(),
        )
        return runner.runs(lambda: trials.wanted)

    def _emit_sample(self, active: WatchedRun, sample: Sampled) -> None:
        """Pass on a sample. A soak's come often, for those who watch it live; fewer are enough to keep."""
        if active.run.spec.repeated:
            return  # samples of runs side by side are not one series
        is_live_only = sample.soak is not None and sample.judged is None
        if not is_live_only or active.thinning.keeps(sample.seconds):
            self._bus.emit(Sample.of(active.run.spec.nodeid, sample))

    def _emit_started(self, run: Run) -> None:
        spec = run.spec
        self._bus.emit(Started(test=spec.nodeid, pid=run.seen.pid, backend=spec.backend, seed=spec.seed))

    def _emit_trial(self, trial: Trial, trials: Trials) -> None:
        """A run of a repeated test is to it what a lap is to a leak test."""
        run = trial.run
        values = {
            "run_passed": float(trial.outcome == "passed"),
            "run_seconds": run.seconds,
            "peak_memory": float(run.peak_memory),
        }
        so_far = f"{trials.passes} of {trials.runs} runs passed, {trials.promise.max_runs} at most"
        self._bus.emit(
            Sample(test=run.spec.nodeid, lap=trial.number, seed=run.spec.seed, values=values, waits_for=so_far)
        )

    def _report(self, item: pytest.Item, reports: list[pytest.TestReport], event: Finished) -> None:
        self._bus.emit(event)
        stability_of(reports[-1])["events"] = self._bus.take_waiting()
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)


def bind_early(config: pytest.Config) -> None:
    """Before any conftest, which may replace functions and start threads: this module has bound the functions that all
    rooms use, and here the threads that are no reason against a fork are noted."""
    if sys.platform == "linux":
        import pytest_rlstability.session.backends.template
        import pytest_rlstability.session.backends.zygote  # noqa: F401
    threads_at_start(config)


def engine_for(session: pytest.Session) -> Engine | None:
    """A started engine; None in a process that runs no tests of its own, or is a test's process."""
    config = session.config
    settings = settings_of(config)
    is_controller = config.pluginmanager.hasplugin("dsession")
    if not settings.enabled or is_test_process(config) or is_controller or config.option.collectonly:
        return None
    engine = Engine(session, settings, config.pluginmanager.getplugin("rlstability-event-bus"))
    try:
        other_backend = engine.start()
    except OSError as error:  # no room, or no descriptor
        engine.stop()
        raise pytest.UsageError(f"rl-stability cannot start: {error}") from error
    except BaseException:
        engine.stop()
        raise
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if other_backend and reporter is not None:
        reporter.ensure_newline()
        reporter.write_line(f"rl-stability: {other_backend}")
    return engine

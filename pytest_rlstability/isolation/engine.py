"""The engine: takes each test from pytest, has it run in a process of its own, and hands back what came of it."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

import pytest

from pytest_rlstability.beacon import is_test_process
from pytest_rlstability.facts import Record, Run
from pytest_rlstability.isolation.coverage import collect_coverage
from pytest_rlstability.isolation.hub import Hub, TestProcess
from pytest_rlstability.isolation.nursery import Nursery
from pytest_rlstability.isolation.plan import Plan, plan_for
from pytest_rlstability.isolation.protocol import Backend
from pytest_rlstability.isolation.spawn import SpawnBackend
from pytest_rlstability.isolation.stall_watch import StallWatch
from pytest_rlstability.isolation.supervisor import Supervisor
from pytest_rlstability.isolation.timeouts import outside_limits, uses_alarm
from pytest_rlstability.isolation.watch import MemoryCap, Watch
from pytest_rlstability.options import Settings, settings_of
from pytest_rlstability.reports.desk import Desk
from pytest_rlstability.reports.replay import replay, report_internal_error, summary
from pytest_rlstability.reports.verdict_report import stability_of
from pytest_rlstability.verdicts import judge

CANARY_LIMIT = 5.0


@dataclass
class Unit:
    """A process that tests of one group share, and goes on after the one it runs."""

    group: str
    nursery: Nursery
    process: TestProcess


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
            run = self._isolate(item, nextitem, self._plan(item))
            if run.fault:
                raise RuntimeError(f"in the test's process:\n{run.fault}")
            if not (run.stop or run.interrupted):
                self._report(item, run)
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
        nursery, process = self._process_for(item, plan)
        follower = nextitem if nextitem is not None and self._shares(plan, nextitem) else None
        run = Run(
            nodeid=item.nodeid,
            backend=nursery.backend.name,
            seed=self._settings.seed,
            pid=process.pid,
            started=time.time(),
            memory_limit=plan.memory,
            shared=follower is not None,
        )
        watches: list[Watch] = outside_limits(item, self._hub.directory)
        if plan.stall_after > 0:
            watches.append(
                StallWatch(
                    plan.stall_after,
                    self._hub.directory,
                    lambda text: self._say_slow(item, text),
                    native=self._settings.native,
                    alarm_is_ours=uses_alarm(item),
                )
            )
        if plan.memory is not None:
            watches.append(MemoryCap(plan.memory))
        self._desk.tell("started", item.nodeid, pid=process.pid, backend=run.backend, seed=run.seed)
        self._hand_over(item, follower, plan, nursery, process)
        self._prewarm(nextitem if follower is None else None)
        self._supervisor.supervise(nursery, process, run, watches)
        if process.exit is None:
            assert plan.group is not None
            self._unit = Unit(plan.group, nursery, process)
        else:
            self._unit = None
            nursery.bury(process)
        return run

    def _hand_over(
        self, item: pytest.Item, follower: pytest.Item | None, plan: Plan, nursery: Nursery, process: TestProcess
    ) -> None:
        if process.wire is None:
            return
        process.wire.send(
            {
                "item": nursery.backend.name_of(item),
                "next": None if follower is None else nursery.backend.name_of(follower),
                "seed": self._settings.seed,
                "failed": self._session.testsfailed,
                "memory": plan.memory,
                "exit_check": plan.exit_check,
            }
        )

    def _process_for(self, item: pytest.Item, plan: Plan) -> tuple[Nursery, TestProcess]:
        """The process of the test's group when it lives, else a new one."""
        if self._unit is not None:
            unit = self._unit
            if unit.group == plan.group and unit.process.exit is None:
                return unit.nursery, unit.process
            self._leave_unit()
        nursery = self._nursery(plan)
        return nursery, nursery.take(nursery.backend.demand(item, plan.environment))

    def _leave_unit(self) -> None:
        """The group's process was told to expect another test that never came: let it tear down and end."""
        unit, self._unit = self._unit, None
        if unit is None:
            return
        if unit.process.wire is not None:
            unit.process.wire.send({"item": None})
        self._hub.wait_until(lambda: unit.process.exit is not None, 10.0)
        unit.nursery.end(unit.process)
        self._hub.wait_until(lambda: unit.process.exit is not None, 10.0)
        unit.nursery.bury(unit.process)

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

    def _say_slow(self, item: pytest.Item, text: str) -> None:
        reporter = item.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(f"SLOW {item.nodeid}: {text}")

    def _tell_sample(self, run: Run, sample: Record) -> None:
        self._desk.tell("sample", run.nodeid, **{key: value for key, value in sample.items() if key != "kind"})

    def _report(self, item: pytest.Item, run: Run) -> None:
        reports = replay(item, run, judge(run), self._settings)
        self._desk.tell("finished", item.nodeid, **summary(run, reports))
        stability_of(reports[-1])["events"] = self._desk.take_waiting()
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)


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

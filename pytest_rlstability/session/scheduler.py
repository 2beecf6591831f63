"""Gives each test its process and its limits, and keeps the process that tests of one group share."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from itertools import pairwise

import pytest

from pytest_rlstability.facts import Exit, Run
from pytest_rlstability.isolation.ahead import may_run_ahead
from pytest_rlstability.isolation.hub import Hub, TestProcess
from pytest_rlstability.isolation.nursery import Nursery
from pytest_rlstability.isolation.plan import Plan, plan_for
from pytest_rlstability.isolation.protocol import Backend, Demand
from pytest_rlstability.isolation.spawn import SpawnBackend
from pytest_rlstability.isolation.stall_watch import StallWatch
from pytest_rlstability.isolation.supervisor import Job, Supervisor
from pytest_rlstability.isolation.timeouts import outside_limits, uses_alarm
from pytest_rlstability.isolation.watch import HeldCrash, MemoryCap, Watch
from pytest_rlstability.options import Settings
from pytest_rlstability.reports.desk import Desk
from pytest_rlstability.reports.replay import warn
from pytest_rlstability.soak.progress import SoakPulse
from pytest_rlstability.soak.thinning import Thinning
from pytest_rlstability.verdicts import judge

CANARY_LIMIT = 5.0


@dataclass
class Unit:
    """A process that tests of one group share, and goes on after the one it runs."""

    group: str
    nursery: Nursery
    process: TestProcess
    last: pytest.Item
    """The test that it ran last."""


@dataclass(frozen=True)
class Started:
    """A test that a process has been told to run."""

    item: pytest.Item
    job: Job


class Dispatch:
    """One per engine. ``begin`` a test, have it supervised, ``finish`` it; ``begin_ahead`` for the one after it."""

    def __init__(self, session: pytest.Session, settings: Settings, desk: Desk, hub: Hub, supervisor: Supervisor):
        self._session = session
        self._settings = settings
        self._desk = desk
        self._hub = hub
        self._supervisor = supervisor
        self._plans: dict[pytest.Item, Plan] = {}
        self._nurseries: dict[str, Nursery] = {}
        self._unit: Unit | None = None
        self._may_run_ahead = may_run_ahead(session.config)
        self._ahead: Started | None = None
        self._early: pytest.Item | None = None
        """The test that the process of a group is to go on with by itself."""
        self._after = dict(pairwise(session.items))
        # An xdist worker is told one test in advance, and has an order of its own; a test may be there twice.
        is_worker = hasattr(session.config, "workerinput")
        self._knows_order = not is_worker and len(self._after) == max(0, len(session.items) - 1)
        self.reason_against_fork = ""
        self._holds = sys.platform == "linux" and self._settings.native != "off"
        """Whether a crash is held where it happened, for its native stack to be read."""

    def start(self) -> None:
        """Make what must exist before the first fork, and find out whether forking is safe."""
        factory = getattr(self._session.config, "_tmp_path_factory", None)
        if factory is not None:
            factory.getbasetemp()
        backends = {self.plan(item).backend for item in self._session.items if self.plan(item).isolate}
        if backends & {"auto", "zygote"}:
            self.reason_against_fork = reason_against_fork() or self._ask_canary()

    def stop(self) -> None:
        """End every process."""
        self.leave_all()
        for nursery in self._nurseries.values():
            nursery.stop()

    def plan(self, item: pytest.Item) -> Plan:
        if item not in self._plans:
            self._plans[item] = plan_for(item, self._settings)
        return self._plans[item]

    def isolates(self, item: pytest.Item) -> bool:
        """Whether *item* runs in a process of ours."""
        plan = self.plan(item)
        return plan.isolate and plan.backend != "inprocess"

    def begin(self, item: pytest.Item, nextitem: pytest.Item | None) -> Job:
        """Have a process run *item*, if none has begun to, and others made ready for *nextitem*."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.item is not item:
            self._abandon(ahead.job)
            ahead = None
        job = ahead.job if ahead is not None else self._start(item, nextitem)
        if not job.run.shared:
            self.prewarm(nextitem)
        elif nextitem is not None and nextitem is self._after.get(item):
            self._send_early(nextitem, job)
        return job

    def prewarm(self, item: pytest.Item | None) -> None:
        """Have processes made ready for *item* while something else goes on."""
        if item is not None and self.isolates(item):
            plan = self.plan(item)
            nursery = self.nursery(plan)
            nursery.prewarm(nursery.backend.demand(item, plan.environment))

    def begin_ahead(self, item: pytest.Item) -> None:
        """Have a process run *item*, the next to ``begin``, already now, if nobody would notice."""
        plan = self.plan(item)
        if not self._may_run_ahead or self._unit is not None or not self.isolates(item):
            return
        if plan.flaky is not None or plan.soak is not None or (plan.group is not None and not self._knows_order):
            return
        nursery = self.nursery(plan)
        if nursery.is_ready(nursery.backend.demand(item, plan.environment)):
            self._ahead = Started(item, self._start(item, self._after.get(item)))

    def finish(self, item: pytest.Item, job: Job) -> None:
        """Keep the process for the rest of the group, or forget it."""
        early, self._early = self._early, None
        if job.run.exit is not None:
            self._unit = None
            job.nursery.bury(job.process)
            return
        group = self.plan(item).group
        assert group is not None
        self._unit = Unit(group, job.nursery, job.process, item)
        if early is not None and job.run.goes_on:
            self._ahead = self._gone_on(early, self._unit)

    def leave_all(self) -> None:
        """End a test that was begun and is not wanted any more, and the process of a group that will not go on."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._abandon(ahead.job)
        self._leave_unit()

    def nursery(self, plan: Plan) -> Nursery:
        """Where processes for tests of this plan come from."""
        name = plan.backend
        if name == "auto":
            name = "spawn" if self.reason_against_fork else "zygote"
        if name not in self._nurseries:
            self._nurseries[name] = Nursery(self._hub, self._backend(name))
        return self._nurseries[name]

    def demand(self, item: pytest.Item, seed: int) -> Demand:
        """What a process for a run with *seed* needs. It hashes by that seed too, as it does when the seed is given for
        the whole session."""
        plan = self.plan(item)
        environment = plan.environment
        if seed != self._settings.seed and "PYTHONHASHSEED" not in {**os.environ, **dict(environment)}:
            environment = (*environment, ("PYTHONHASHSEED", str(seed % 2**32)))
        return self.nursery(plan).backend.demand(item, environment)

    def hand_over(self, item: pytest.Item, nursery: Nursery, process: TestProcess, seed: int) -> Job:
        """Have *process* run *item*, and nothing else."""
        self._send(item, None, nursery, process, seed)
        return self._job(item, nursery, process, seed)

    def _start(self, item: pytest.Item, nextitem: pytest.Item | None) -> Job:
        plan = self.plan(item)
        nursery, process, before = self._process_for(item, plan)
        follower = self._follower(plan, nextitem)
        self._send(item, follower, nursery, process, self._settings.seed)
        job = self._job(item, nursery, process, self._settings.seed)
        job.run.shared, job.run.after = follower is not None, before
        return job

    def _send_early(self, item: pytest.Item, job: Job) -> None:
        """Tell a process that runs a test of a group which one to go on with, if that one passes."""
        if self._may_run_ahead and self._knows_order:
            self._early = item
            follower = self._follower(self.plan(item), self._after.get(item))
            self._send(item, follower, job.nursery, job.process, self._settings.seed, early=True)

    def _gone_on(self, item: pytest.Item, unit: Unit) -> Started:
        """A group's process runs *item*, as it was told."""
        job = self._job(item, unit.nursery, unit.process, self._settings.seed)
        job.run.shared = self._follower(self.plan(item), self._after.get(item)) is not None
        job.run.after = unit.last.nodeid
        return Started(item, job)

    def _send(
        self,
        item: pytest.Item,
        follower: pytest.Item | None,
        nursery: Nursery,
        process: TestProcess,
        seed: int,
        *,
        early: bool = False,
    ) -> None:
        if process.wire is None:
            return
        plan, backend = self.plan(item), nursery.backend
        process.wire.send(
            {
                "item": backend.name_of(item),
                "next": None if follower is None else backend.name_of(follower),
                "seed": seed,
                "failed": self._session.testsfailed,
                "memory": plan.memory,
                "exit_check": plan.exit_check,
                "repeated": plan.flaky is not None,
                "early": early,
            }
        )

    def _process_for(self, item: pytest.Item, plan: Plan) -> tuple[Nursery, TestProcess, str]:
        """The process of the test's group, and the test that ran in it before; else a new one.

        One that has died meanwhile is handed out as well: somebody has to report it.
        """
        unit = self._unit
        if unit is not None and unit.group == plan.group:
            unit.process.slot.clear()
            return unit.nursery, unit.process, unit.last.nodeid
        self._leave_unit()
        nursery = self.nursery(plan)
        return nursery, nursery.take(nursery.backend.demand(item, plan.environment)), ""

    def _follower(self, plan: Plan, nextitem: pytest.Item | None) -> pytest.Item | None:
        """The next test, if it shares the process of one with this plan."""
        if plan.group is None or nextitem is None or not self.isolates(nextitem):
            return None
        return nextitem if self.plan(nextitem).group == plan.group else None

    def _job(self, item: pytest.Item, nursery: Nursery, process: TestProcess, seed: int) -> Job:
        plan = self.plan(item)
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
            watches.append(
                SoakPulse(run, plan.soak.duration, lambda run, note: self._desk.note("progress", run.nodeid, **note))
            )
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
                    strangers=self._hub.pids,
                )
            )
        if plan.memory is not None:
            watches.append(MemoryCap(plan.memory))
        if self._holds:
            watches.append(HeldCrash())
        return watches

    def _abandon(self, job: Job) -> None:
        self._supervisor.end([job])
        job.nursery.bury(job.process)
        if self._unit is not None and self._unit.process is job.process:
            self._unit = None

    def _leave_unit(self) -> None:
        """The group's process was told to expect another test that never came: let it tear down and end."""
        unit, self._unit = self._unit, None
        if unit is None:
            return
        process, was_ended = unit.process, unit.process.ended
        if process.wire is not None:
            process.wire.send({"item": None, "early": False})
        self._hub.wait_until(lambda: process.exit is not None or bool(process.fault), 10.0)
        unit.nursery.end(process)
        self._hub.wait_until(lambda: process.exit is not None, 10.0)
        unit.nursery.bury(process)
        if not was_ended:
            self._warn_of_death(unit)

    def _warn_of_death(self, unit: Unit) -> None:
        """Every test of the group has been reported: what goes wrong after that is nobody's failure, but is told."""
        process = unit.process
        run = self._job(unit.last, unit.nursery, process, self._settings.seed).run
        for record in process.take_records():
            run.hear(record)
        run.done, run.phase, run.exit = True, process.slot.phase, process.exit or Exit(None)
        run.dump, run.threads = process.fault.decode(errors="replace"), process.threads
        if (verdict := judge(run)) is not None:
            warn(unit.last, f"the process that {unit.last.nodeid} was the last to run in: {verdict.text()}")

    def _backend(self, name: str) -> Backend:
        if name == "zygote":
            from pytest_rlstability.isolation.zygote import ZygoteBackend

            return ZygoteBackend(self._session, self._hub, hold=self._holds, seed=self._settings.seed)
        return SpawnBackend(self._session, self._hub, hold=self._holds, seed=self._settings.seed)

    def _ask_canary(self) -> str:
        """Have a forked process use the native threads this one may have used, and see whether it comes back."""
        nursery = Nursery(self._hub, self._backend("zygote"))
        self._nurseries["zygote"] = nursery
        if nursery.sing(CANARY_LIMIT):
            return ""
        return "a forked process hangs or dies in its first parallel computation (threads were used before the fork)"


def reason_against_fork() -> str:
    """Why processes of this platform or state cannot be forked safely; empty when they can."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return f"forking is not safe on {sys.platform}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialised, and does not survive a fork"
    return ""

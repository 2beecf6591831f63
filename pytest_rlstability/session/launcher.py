"""Gives a test its process, its orders and its watchdogs."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import pytest

from pytest_rlstability.compat.pytest import wide_fixtures
from pytest_rlstability.config.markers import is_marked
from pytest_rlstability.config.options import Settings
from pytest_rlstability.config.plan import Plan, plan_for
from pytest_rlstability.model.messages import Finish, RunTest
from pytest_rlstability.model.run import Observed, Run, RunSpec
from pytest_rlstability.model.thinning import Thinning
from pytest_rlstability.model.user_code import Origin, origin
from pytest_rlstability.session.backends.interface import ProcessSpec
from pytest_rlstability.session.connections import Connections
from pytest_rlstability.session.event_bus import EventBus
from pytest_rlstability.session.other_plugins.plugin_carrier import PluginCarrier
from pytest_rlstability.session.other_plugins.reruns import Reruns
from pytest_rlstability.session.pools import FIXTURES, Pools
from pytest_rlstability.session.process_pool import NoProcessError, ProcessPool
from pytest_rlstability.session.scheduler import Place
from pytest_rlstability.session.supervisor import ActiveRun, Supervisor
from pytest_rlstability.session.test_process import TestProcess
from pytest_rlstability.session.watchdogs import KillCondition, Observer, WatchContext
from pytest_rlstability.session.watchdogs.timeouts import stacks_every

_COMPUTING = 5
"""How many times ``--rl-stall-after`` wide fixtures may compute before a fork. After that, or when they stand still for
``--rl-stall-after``, each test sets them up for itself, where their stacks are shown."""


class TestLauncher:
    """Carries out what the scheduler decides."""

    __test__ = False

    def __init__(
        self,
        session: pytest.Session,
        settings: Settings,
        bus: EventBus,
        connections: Connections,
        supervisor: Supervisor,
        pools: Pools,
    ) -> None:
        self._session = session
        self._settings = settings
        self._bus = bus
        self._connections = connections
        self._supervisor = supervisor
        self._pools = pools
        self.on_exit: Callable[[ActiveRun], None] = lambda active: None
        """Called when a process that tests shared has ended, with a run that stands for its exit."""
        self._plans: dict[pytest.Item, Plan] = {}
        self._groups: dict[pytest.Item, Hashable | None] = {}
        self.not_shared: dict[tuple[str, ...], str] = {}
        """Wide fixtures that every marked test sets up for itself, and why."""
        self.plugins = PluginCarrier(session)
        self.reruns = Reruns()
        self.last_with_fixtures: pytest.Item | None = None
        """The last test that was forked with its wide fixtures set up."""

    # what a test asks for

    def plan(self, item: pytest.Item) -> Plan:
        if item not in self._plans:
            self._plans[item] = plan_for(item, self._settings)
        return self._plans[item]

    def isolates(self, item: pytest.Item) -> bool:
        """Whether *item* runs in a process of ours."""
        plan = self.plan(item)
        return plan.isolate and plan.backend != "inprocess"

    def has_own_process(self, item: pytest.Item) -> bool:
        return self.isolates(item) and self.plan(item).group is None

    def group_of(self, item: pytest.Item) -> Hashable | None:
        if item not in self._groups:
            group = self.plan(item).group
            shares = group is not None and self.isolates(item)
            self._groups[item] = (group, self.pool(item).backend.name, self.spec(item)) if shares else None
        return self._groups[item]

    def pool(self, item: pytest.Item) -> ProcessPool:
        return self._pools.get(self.plan(item).backend)

    def spec(self, item: pytest.Item, seed: int | None = None) -> ProcessSpec:
        """What the process for a run with *seed* has to be like. A seed of its own decides its hashes too, as it does
        when it is given for the whole session."""
        environment = self.plan(item).environment
        has_own_seed = seed not in (None, self._settings.seed)
        if has_own_seed and "PYTHONHASHSEED" not in {**os.environ, **dict(environment)}:
            environment = (*environment, ("PYTHONHASHSEED", str(seed % 2**32)))  # type: ignore[operator]
        finds_all = self.plan(item).group in ("auto", "session")
        return self.pool(item).backend.spec(item, environment, finds_all=finds_all)

    # processes

    def can_start_early(self, item: pytest.Item) -> bool:
        plan = self.plan(item)
        if not self.isolates(item) or plan.flaky is not None or plan.soak is not None:
            return False
        return self.pool(item).is_ready(self.spec(item))

    def start(self, item: pytest.Item, place: Place) -> ActiveRun:
        pool, process = self._take_with_fixtures(item) or self._take(item)
        active = self._active(item, place, pool, process)
        self._send(item, place, pool, process)
        return active

    def _take(self, item: pytest.Item) -> tuple[ProcessPool, TestProcess]:
        pool = self.pool(item)
        try:
            return pool, pool.take(self.spec(item))
        except NoProcessError as error:
            if self.plan(item).backend != "auto" or not self._pools.give_up(str(error)):
                raise
            self._groups.clear()
            return self._take(item)

    def _take_with_fixtures(self, item: pytest.Item) -> tuple[ProcessPool, TestProcess] | None:
        """A process in which the wide fixtures of *item* are set up already, where that is possible."""
        fixtures = tuple(self._shared_fixtures(item))
        if not fixtures or fixtures in self.not_shared:
            return None
        pool = self._pools.get(FIXTURES)
        try:
            process = pool.take(pool.backend.spec(item, (), finds_all=True), *self._patience())
        except NoProcessError as error:
            self.not_shared[fixtures] = str(error).partition("gives no process: ")[2]
            return None
        self.last_with_fixtures = item
        return pool, process

    def _shared_fixtures(self, item: pytest.Item) -> list[str]:
        """The wide fixtures of the user's own that *item* shares with other tests, though not its process."""
        if self.plan(item).group is not None or self.pool(item).backend.name != "zygote" or not is_marked(item):
            return []
        return [name for name, function in wide_fixtures(item).items() if _is_users(name, function)]

    def tear_down_fixtures(self) -> list[str]:
        """Tear down what tests with a process of their own have shared; the errors as texts."""
        if self.last_with_fixtures is None:
            return []
        return self._pools.get(FIXTURES).tear_down_fixtures(*self._patience(), self._settings.native)

    def _patience(self) -> tuple[float, float]:
        """How many seconds wide fixtures may take, and how many of them without using the processor."""
        still = self._settings.stall_after or self._settings.limit or math.inf
        return _COMPUTING * still, still

    def start_repeated(self, item: pytest.Item, process: TestProcess, seed: int) -> ActiveRun:
        """Have *process* run *item* with *seed*, and nothing else."""
        pool = self.pool(item)
        active = self._active(item, Place(), pool, process, seed=seed)
        self._send(item, Place(), pool, process, seed)
        return active

    def send(self, before: ActiveRun, item: pytest.Item, place: Place) -> ActiveRun:
        before.process.counters.clear()
        self._send(item, place, before.owner, before.process)
        return self.follow_queued(before, item, place)

    def can_queue(self, active: ActiveRun) -> bool:
        return active.process.messages is not None and active.process.messages.has_room()

    def send_queued(self, active: ActiveRun, item: pytest.Item, place: Place) -> None:
        self._send(item, place, active.owner, active.process, queued=True)

    def follow_queued(self, before: ActiveRun, item: pytest.Item, place: Place) -> ActiveRun:
        done = before.run.seen.done
        before.earlier[before.item] = () if done is None else done.left
        return self._active(item, place, before.owner, before.process, earlier=before.earlier)

    def prewarm(self, item: pytest.Item) -> None:
        if self.isolates(item):
            self.pool(item).prewarm(self.spec(item))

    def is_lost(self, active: ActiveRun) -> bool:
        self._connections.pump(0)
        return active.process.exit is not None and active.process.exit.status is None

    def release(self, active: ActiveRun) -> None:
        active.owner.release(active.process)

    def kill(self, active: ActiveRun) -> None:
        self._supervisor.end([active])
        self.release(active)

    def finish(self, active: ActiveRun) -> None:
        """Let a process that waits for a test tear down and end. Its exit is watched like a test."""
        ending = self.follow_queued(active, active.item, Place())
        ending.run.seen.done = active.run.seen.done
        ending.run.spec = replace(ending.run.spec, memory_limit=None)  # what it used has been judged
        active.process.send(Finish())
        try:
            self._supervisor.supervise(ending)
        finally:
            self.release(active)
        self.on_exit(ending)

    def _send(
        self,
        item: pytest.Item,
        place: Place,
        pool: ProcessPool,
        process: TestProcess,
        seed: int | None = None,
        *,
        queued: bool = False,
    ) -> None:
        plan, backend, next_item = self.plan(item), pool.backend, place.next_item
        if not queued:
            self.plugins.bring(process)
        finds_next = next_item is not None and self.spec(item).finds(next_item)
        process.send(
            RunTest(
                test=backend.key_of(item),
                next_test=backend.key_of(next_item) if next_item is not None and finds_next else None,
                seed=self._settings.seed if seed is None else seed,
                tests_failed=self._session.testsfailed,
                memory=plan.memory,
                exit_check=plan.exit_check,
                repeated=plan.flaky is not None,
                stays=place.stays,
                queued=queued,
                attempts=self.reruns.attempts.get(item, 0),
                stacks_every=stacks_every(item, plan),
            )
        )

    # watching

    def _active(
        self,
        item: pytest.Item,
        place: Place,
        pool: ProcessPool,
        process: TestProcess,
        *,
        seed: int | None = None,
        earlier: dict[pytest.Item, Sequence[str]] | None = None,
    ) -> ActiveRun:
        plan = self.plan(item)
        spec = RunSpec(
            nodeid=item.nodeid,
            backend=pool.backend.name,
            seed=self._settings.seed if seed is None else seed,
            memory_limit=plan.memory,
            repeated=plan.flaky is not None,
            stays=place.stays,
            previous_test=[*earlier][-1].nodeid if earlier else "",
            unsafe_fork=self._pools.reason_against_fork if pool.backend.name == "zygote" else "",
        )
        run = Run(spec, Observed(process.pid))
        watched = self._connections
        sample = self._supervisor.sample
        context = WatchContext(plan, run, watched.directory, watched.pids, sample, self._bus.emit)
        active = ActiveRun(
            item=item,
            owner=pool,
            process=process,
            run=run,
            earlier=earlier or {},
            make_watchdogs=partial(_watchdogs, item, context),
            thinning=Thinning(self._bus.workers),
        )
        if self._others_watch:
            active.start_watching()
        return active

    @cached_property
    def _others_watch(self) -> bool:
        """Whether another package has watchdogs, which may want to see the shortest test."""
        hook = self._session.config.hook
        hooks = (hook.pytest_rlstability_kill_conditions, hook.pytest_rlstability_observers)
        return any(len(one.get_hookimpls()) > 1 for one in hooks)


def _watchdogs(item: pytest.Item, context: WatchContext) -> tuple[list[KillCondition], list[Observer]]:
    conditions = item.ihook.pytest_rlstability_kill_conditions(item=item, context=context)
    observers = item.ihook.pytest_rlstability_observers(item=item, context=context)
    return [*chain(*conditions)], [*chain(*observers)]


def _is_users(name: str, function: Any) -> bool:
    """Whether a fixture is the user's; what pytest makes of ``setup_module`` and the like is."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return name.startswith(("_xunit_", "_unittest_")) or (code is not None and origin(code.co_filename) is Origin.USER)

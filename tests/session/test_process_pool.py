"""Processes on demand, from a backend and connections made up for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlstability.model.messages import EndProcess, StartFailed, StartProcess
from pytest_rlstability.model.run import Exit
from pytest_rlstability.session import process_pool
from pytest_rlstability.session.backends.interface import ProcessSpec
from pytest_rlstability.session.process_pool import NoProcessError, ProcessPool

ONE, OTHER = ProcessSpec(), ProcessSpec(environment=(("A", "1"),))


class World:
    """A backend, its connections and its parent process. Processes start at once, unless *starts* says otherwise."""

    name = "fake"
    spares = 2

    def __init__(self) -> None:
        self.parents: list[Any] = []
        self.started: list[Any] = []
        self.released: list[int] = []
        self.orders: list[Any] = []
        self.starts = self.parent_starts = True
        self.dead_parents = 0
        """How many parents die before the first order reaches them."""
        self.lost: list[Any] = []
        self.ended_parents: list[float] = []
        self.preloads = False
        """Whether the parent imports something of which it dies."""
        self.refusals: list[StartFailed] = []

    # the backend

    def start_parent(self) -> None:
        if self.parent_starts:
            link = SimpleNamespace(serials=set(), messages=SimpleNamespace(send=self._send))
            self.parents.append(link)

    def start_order(self, serial: int, spec: ProcessSpec) -> StartProcess:
        return StartProcess(serial, environment=dict(spec.environment))

    def first_order(self, spec: ProcessSpec) -> None:
        return None

    def give_up_preload(self) -> bool:
        given_up, self.preloads = self.preloads, False
        if given_up:
            self.parent_starts = True
        return given_up

    def parent_lives(self) -> bool:
        return self.parent_starts

    def end_parent(self, grace: float) -> None:
        self.ended_parents.append(grace)

    # the connections

    def expect(self) -> Any:
        process = SimpleNamespace(
            serial=len(self.started) + 1, ready=False, exit=None, refused=None, killed=False, first_order=None
        )
        self.started.append(process)
        return process

    def release(self, process: Any) -> None:
        self.released.append(process.serial)

    def wait_until(self, condition: Any, timeout: float, look_every: float = 0.0) -> bool:
        return bool(condition())

    def lose(self, parent: Any) -> None:
        self.lost.append(parent)
        self.parents.remove(parent)

    dismiss = lose

    def _send(self, order: Any) -> bool:
        if self.dead_parents:
            self.dead_parents -= 1
            return False
        self.orders.append(order)
        process = self.started[order.serial - 1]
        if isinstance(order, EndProcess):
            process.exit = Exit(-9)
        elif self.refusals:
            process.refused = self.refusals.pop(0)
        elif self.starts:
            process.ready = True
            if order.canary:
                process.exit = Exit(0)
        return True


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def pool(world: World) -> ProcessPool:
    return ProcessPool(world, world)  # type: ignore[arg-type]


def test_a_process_is_started_when_none_is_ready(world, pool):
    process = pool.take(ONE)
    assert process.ready
    assert world.orders == [StartProcess(1)]
    assert world.parents[0].serials == {1}


def test_spares_serve_tests_with_the_same_spec(world, pool):
    pool.prewarm(ONE)
    assert [process.serial for process in world.started] == [1, 2]
    assert pool.is_ready(ONE)
    assert not pool.is_ready(OTHER)
    assert pool.take(ONE).serial == 1
    assert len(world.started) == 2


def test_spares_made_for_another_spec_are_discarded(world, pool):
    pool.prewarm(OTHER)
    assert pool.take(ONE).serial == 3
    assert [order for order in world.orders if isinstance(order, EndProcess)] == [EndProcess(1), EndProcess(2)]
    assert world.released == [1, 2]


def test_a_spare_that_has_died_is_not_handed_out(world, pool):
    pool.prewarm(ONE)
    world.started[0].exit = Exit(-9)
    assert not pool.is_ready(ONE)
    assert pool.take(ONE).serial == 2


def test_a_process_that_does_not_start_is_ended_and_an_error(world, pool):
    world.starts = False
    with pytest.raises(NoProcessError, match="it started no process within"):
        pool.take(ONE)
    assert EndProcess(1) in world.orders
    assert len(world.lost) == len(world.ended_parents) == 2  # the parent was replaced each time


def test_a_parent_that_does_not_start_is_an_error(world, pool):
    world.parent_starts = False
    with pytest.raises(NoProcessError, match="did not start"):
        pool.take(ONE)


def test_a_parent_that_dies_of_a_library_is_started_without_it(world, pool):
    world.parent_starts, world.preloads = False, True
    assert pool.take(ONE).ready


def test_a_parent_that_was_killed_is_replaced(world, pool):
    world.dead_parents = 1
    assert pool.take(ONE).ready
    assert len(world.lost) == 1


def test_parents_that_keep_dying_are_an_error(world, pool):
    world.dead_parents = 99
    with pytest.raises(NoProcessError, match="does not answer"):
        pool.take(ONE)
    assert len(world.lost) == 2


def test_a_process_whose_parent_was_killed_before_it_started_is_asked_for_again(world, pool):
    pool.prewarm(ONE)
    spare = world.started[0]
    spare.ready = False
    original = world.wait_until

    def loses_the_first(condition: Any, timeout: float, look_every: float = 0.0) -> bool:
        if spare.exit is None:
            spare.exit = Exit(None)
        return original(condition, timeout)

    world.wait_until = loses_the_first
    assert pool.take(ONE).serial == 2


def test_a_refusal_that_may_pass_is_tried_again(world, pool, monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(process_pool.time, "sleep", pauses.append)
    world.refusals = [StartFailed(1, "too many processes", again=True)] * 2
    assert pool.take(ONE).serial == 3
    assert pauses == [0.25, 0.5]
    assert world.released == [1, 2]


def test_a_refusal_for_good_is_an_error_with_its_reason(world, pool):
    world.refusals = [StartFailed(1, "they start threads", again=False)]
    with pytest.raises(NoProcessError, match="fake backend gives no process: they start threads"):
        pool.take(ONE)
    assert len(world.started) == 1


def test_a_released_process_is_no_longer_its_parents(world, pool):
    process = pool.take(ONE)
    pool.release(process)
    assert world.parents[0].serials == set()
    assert world.released == [1]


def test_a_killed_process_is_known_as_such(world, pool):
    process = pool.take(ONE)
    pool.end(process)
    assert process.killed
    assert process.exit == Exit(-9)


@pytest.mark.parametrize(("exit", "survives"), [(Exit(0), True), (Exit(-11), False), (None, False)])
def test_the_canary(world, pool, exit, survives):
    def fake_send(order: Any) -> bool:
        world.orders.append(order)
        process = world.started[order.serial - 1]
        process.exit = Exit(-9) if isinstance(order, EndProcess) else exit
        return True

    world.start_parent()
    world.parents[0].messages.send = fake_send
    pool._parent = world.parents[0]
    assert pool.survives_canary(5.0) is survives
    assert world.orders[0].canary
    assert world.released == [1]


def test_stopping_ends_the_spares_and_waits_for_the_parent(world, pool):
    pool.prewarm(ONE)
    pool.stop()
    assert sorted(world.released) == [1, 2]
    assert world.ended_parents == [10.0]
    assert world.parents == []
    pool.stop()
    assert world.ended_parents == [10.0]


def test_a_parent_that_cannot_be_forked_is_tried_again(world, pool, monkeypatch):
    monkeypatch.setattr(process_pool, "_PAUSE", 0.0)
    start, failures = world.start_parent, [BlockingIOError(11, "Resource temporarily unavailable")] * 2

    def start_parent() -> None:
        if failures:
            raise failures.pop()
        start()

    world.start_parent = start_parent
    assert pool.take(ONE).ready


def test_a_parent_that_can_never_be_forked_is_said_with_its_reason(world, pool, monkeypatch):
    monkeypatch.setattr(process_pool, "_PAUSE", 0.0)

    def start_parent() -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    world.start_parent = start_parent
    with pytest.raises(NoProcessError, match="cannot be started: Resource temporarily unavailable"):
        pool.take(ONE)

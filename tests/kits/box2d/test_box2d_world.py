"""``box2d_world`` with the real Box2D: counts, creation sites, freed memory never touched, Gymnasium's worlds."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

Box2D = pytest.importorskip("Box2D")

from pytest_rlstability.kits.box2d.registry import USER_DATA_LEAK, ShapeLeak, WorldLockedError  # noqa: E402
from pytest_rlstability.kits.box2d.watch import Box2DWarning, WorldFactory  # noqa: E402
from pytest_rlstability.kits.box2d.wrappers import DestroyedObjectError  # noqa: E402
from pytest_rlstability.leaks.growers import census, growers, grown_since  # noqa: E402
from pytest_rlstability.model.verdict import VerdictFailure  # noqa: E402


def drop_ball(world: Any, height: float = 2.0) -> Any:
    ball = world.CreateDynamicBody(position=(0, height))
    ball.CreateCircleFixture(radius=0.5, density=1)
    return ball


def lay_ground(world: Any) -> Any:
    return world.CreateStaticBody(shapes=Box2D.b2PolygonShape(box=(10, 1)), userData="terrain")


def step(world: Any, count: int = 100) -> None:
    for _ in range(count):
        world.Step(1 / 60, 6, 2)


def run_laps(world: Any, work: Callable[[], object]) -> None:
    for _ in range(20):
        work()
        world.lap()


# Counting


def test_census_by_type_and_class(box2d_world: WorldFactory) -> None:
    world = box2d_world(gravity=(0, -10), classify=lambda body: body.userData)
    ground, ball = lay_ground(world), drop_ball(world)
    ball.userData = "agent"
    world.CreateKinematicBody(position=(50, 0))
    world.CreateRevoluteJoint(bodyA=ground, bodyB=ball, anchor=(0, 2))
    assert world.census() == {
        "bodies": 3,
        "static": 1,
        "kinematic": 1,
        "dynamic": 1,
        "terrain": 1,
        "agent": 1,
        "unknown": 1,
        "fixtures": 2,
        "joints": 1,
        "contacts": 0,
        "worlds": 1,
    }
    assert world.census().agent == 1
    assert world.census()["no such class"] == 0
    assert box2d_world.census() == world.census()


def test_classes_by_condition(box2d_world: WorldFactory) -> None:
    world = Box2D.b2World()
    watch = box2d_world.watch(
        world, classify={"heavy": lambda body: body.mass > 1, "light": lambda body: body.mass > 0}
    )
    drop_ball(world).CreateCircleFixture(radius=2, density=9)
    drop_ball(world)
    lay_ground(world)
    census = watch.census()
    assert (census["heavy"], census["light"], census["unknown"]) == (1, 1, 1)
    assert box2d_world.census(world) == census


def test_contacts_are_counted(box2d_world: WorldFactory) -> None:
    world = box2d_world(gravity=(0, -10))
    lay_ground(world)
    drop_ball(world)
    step(world)
    assert world.census()["contacts"] == 1


# Growth


def test_growth_without_end_is_a_leak_with_the_line_that_made_it(box2d_world: WorldFactory) -> None:
    world = box2d_world(classify=lambda body: body.userData)
    with pytest.raises(VerdictFailure) as caught:
        run_laps(world, lambda: lay_ground(world))
    text = str(caught.value)
    assert text.startswith("LEAK: box2d: static grew by 1 per lap over 16 laps without levelling off")
    assert "terrain grew by 1 per lap" in text
    assert "15 x static body, made at" in text
    assert "test_box2d_world.py" in text
    assert "in lay_ground" in text
    assert caught.value.verdict.location is not None
    assert caught.value.verdict.location.function == "lay_ground"
    assert "16 x polygon shape, about 4864 bytes" in text


def test_limits_fail_at_once(box2d_world: WorldFactory) -> None:
    world = box2d_world(limits={"bodies": {"critical": 3}})
    for _ in range(3):
        lay_ground(world)
    world.lap()
    lay_ground(world)
    with pytest.raises(VerdictFailure, match="bodies reached 4, beyond the critical limit of 3"):
        world.lap()


def test_the_warning_comes_first_and_once(box2d_world: WorldFactory) -> None:
    world = box2d_world(limits={"dynamic": {"warning": 1, "critical": 9}})
    drop_ball(world)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        world.lap()
        drop_ball(world)
        world.lap()
        world.lap()
    assert [str(one.message) for one in shown] == ["box2d_world: dynamic is 2, beyond the warning limit of 1"]
    assert shown[0].category is Box2DWarning
    assert shown[0].filename == __file__


def test_growth_per_lap_limit(box2d_world: WorldFactory) -> None:
    world = box2d_world(limits={"joints": {"per_lap": 0}})
    ground, ball = lay_ground(world), drop_ball(world)
    world.lap()
    world.CreateRevoluteJoint(bodyA=ground, bodyB=ball, anchor=(0, 2))
    with pytest.raises(VerdictFailure, match="joints grew by 1 per lap over 2 laps, limit 0"):
        world.lap()


@pytest.mark.parametrize("pool", [0, 8])
def test_worlds_that_tidy_up_are_innocent(box2d_world: WorldFactory, pool: int) -> None:
    world, kept = box2d_world(gravity=(0, -10), limits={"dynamic": {"critical": 10}}), []
    lay_ground(world)
    for _ in range(40):
        kept.append(drop_ball(world))
        step(world, 5)
        while len(kept) > pool:
            world.DestroyBody(kept.pop(0))
        world.lap()


def test_worlds_that_are_dropped_are_innocent(box2d_world: WorldFactory) -> None:
    for _ in range(40):
        drop_ball(box2d_world())
    assert box2d_world.registry.world_count() <= 1
    assert not box2d_world.registry._records or box2d_world.registry.world_count() == 1


def test_worlds_that_are_never_freed_are_a_leak(box2d_world: WorldFactory) -> None:
    world, lost = box2d_world(), []
    with pytest.raises(VerdictFailure, match="worlds grew by 1 per lap"):
        run_laps(world, lambda: lost.append(Box2D.b2World()))


def test_worlds_in_reference_cycles_are_innocent(box2d_world: WorldFactory) -> None:
    class Holder:
        def __init__(self) -> None:
            self.world, self.me = Box2D.b2World(), self

    world = box2d_world()
    gc.disable()
    try:
        for _ in range(20):
            Holder()
            world.lap()
    finally:
        gc.enable()


# What is gone is gone


def test_a_destroyed_body_names_both_lines(box2d_world: WorldFactory) -> None:
    world = box2d_world()
    ball = drop_ball(world)
    other_wrapper = world.bodies[0]
    world.DestroyBody(ball)
    for wrapper in (ball, other_wrapper):
        with pytest.raises(DestroyedObjectError) as caught:
            _ = wrapper.position
        text = str(caught.value)
        assert text.startswith("reading .position of a destroyed dynamic body")
        created, destroyed = text.split("destroyed by DestroyBody:")
        assert "in drop_ball" in created
        assert "in test_a_destroyed_body_names_both_lines" in destroyed


def test_what_goes_with_a_body(box2d_world: WorldFactory) -> None:
    world = box2d_world()
    ground, ball = lay_ground(world), drop_ball(world)
    fixture, joint = ball.fixtures[0], world.CreateRevoluteJoint(bodyA=ground, bodyB=ball, anchor=(0, 2))
    world.DestroyBody(ball)
    with pytest.raises(DestroyedObjectError, match="a destroyed fixture with a circle shape"):
        _ = fixture.body
    with pytest.raises(DestroyedObjectError, match="a destroyed RevoluteJoint"):
        world.DestroyJoint(joint)
    with pytest.raises(DestroyedObjectError, match=r"setting \.angle"):
        ball.angle = 1
    with pytest.raises(DestroyedObjectError):
        ball.CreateCircleFixture(radius=1)
    with pytest.raises(DestroyedObjectError):
        world.DestroyBody(ball)
    with pytest.raises(TypeError):
        world.CreateRevoluteJoint(bodyA=ground, bodyB=ball, anchor=(0, 2))
    assert ground.position == (0, 0)


def test_destroyed_joints_and_fixtures(box2d_world: WorldFactory) -> None:
    world = box2d_world()
    ground, ball = lay_ground(world), drop_ball(world)
    joint = world.CreateRevoluteJoint(bodyA=ground, bodyB=ball, anchor=(0, 2))
    fixture = ball.fixtures[0]
    world.DestroyJoint(joint)
    ball.DestroyFixture(fixture)
    with pytest.raises(DestroyedObjectError, match="destroyed by DestroyJoint"):
        _ = joint.bodyA
    with pytest.raises(DestroyedObjectError, match="destroyed by DestroyFixture"):
        _ = fixture.density
    assert ball.fixtures == []
    step(world, 3)


def test_a_body_outlives_its_world(box2d_world: WorldFactory) -> None:
    world = box2d_world()
    ball = drop_ball(world)
    del world
    gc.collect()
    with pytest.raises(DestroyedObjectError, match="destroyed with its world"):
        ball.CreateCircleFixture(radius=1)


def test_an_address_that_is_used_again_is_not_mistaken(box2d_world: WorldFactory) -> None:
    world = box2d_world()
    for _ in range(50):
        old = drop_ball(world)
        world.DestroyBody(old)
        new = drop_ball(world)
        assert new.position == (0, 2)
        with pytest.raises(DestroyedObjectError):
            _ = old.position
        world.DestroyBody(new)


def test_what_stays_harmless_on_the_destroyed(box2d_world: WorldFactory) -> None:
    world = box2d_world()
    ball = drop_ball(world)
    ball.nickname, bodies, marked = "red", [ball], {ball}
    world.DestroyBody(ball)
    assert ball.nickname == "red"
    ball.nickname = "blue"
    assert ball in marked
    assert isinstance(ball, Box2D.b2Body)
    bodies.remove(ball)
    marked.discard(ball)
    assert not bodies
    assert not marked
    assert repr(ball) == "<destroyed dynamic body>"


def test_user_data_may_be_read_in_the_last_contact(box2d_world: WorldFactory) -> None:
    seen = []

    class Listener(Box2D.b2ContactListener):  # type: ignore[misc]
        def EndContact(self, contact: Any) -> None:  # noqa: N802 (Box2D's name)
            seen.append({contact.fixtureA.body.userData, str(contact.fixtureB.body.userData)})

    world = box2d_world(gravity=(0, -10), contactListener=Listener())
    lay_ground(world)
    ball = drop_ball(world)
    ball.userData = ["a list that nobody else holds"]
    step(world)
    world.DestroyBody(ball)
    assert seen == [{"terrain", "['a list that nobody else holds']"}]


@pytest.mark.parametrize("attempt", ["DestroyBody", "CreateBody", "CreateFixture"])
def test_a_locked_world_is_explained(box2d_world: WorldFactory, attempt: str) -> None:
    class Listener(Box2D.b2ContactListener):  # type: ignore[misc]
        def BeginContact(self, contact: Any) -> None:  # noqa: N802 (Box2D's name)
            if attempt == "DestroyBody":
                world.DestroyBody(contact.fixtureA.body)
            elif attempt == "CreateBody":
                world.CreateStaticBody()
            else:
                contact.fixtureA.body.CreateCircleFixture(radius=1)

    world = box2d_world(gravity=(0, -10), contactListener=Listener())
    lay_ground(world)
    drop_ball(world)
    with pytest.raises(WorldLockedError, match=rf"{attempt} inside world.Step, at .*box2d_world.py.* in BeginContact"):
        step(world)


def test_box2d_is_put_back() -> None:
    before = dict(vars(Box2D.b2World)), dict(vars(Box2D.b2Body)), Box2D.b2FixtureDef.__dict__["shape"]
    with WorldFactory() as factory:
        factory().CreateStaticBody()
        assert vars(Box2D.b2World)["DestroyBody"] is not before[0]["DestroyBody"]
    assert (dict(vars(Box2D.b2World)), dict(vars(Box2D.b2Body)), Box2D.b2FixtureDef.__dict__["shape"]) == before
    world = Box2D.b2World()
    ball = drop_ball(world)
    world.DestroyBody(ball)


# The library's own share


def test_the_librarys_losses_are_counted_by_name(box2d_world: WorldFactory) -> None:
    world, lost_before = box2d_world(), ShapeLeak.lost_bytes
    shared = Box2D.b2FixtureDef(shape=Box2D.b2PolygonShape(box=(1, 1)))
    for _ in range(4):
        body = world.CreateDynamicBody(fixtures=shared)
        body.CreateEdgeFixture(vertices=[(0, 0), (1, 1)])
        body.CreateCircleFixture(radius=1, userData={"lost": True})
        world.DestroyBody(body)
    leaks = box2d_world.registry.library_leaks
    assert leaks == {"polygon shape": 1, "edge shape": 4, "circle shape": 4, USER_DATA_LEAK: 4}
    assert ShapeLeak.lost_bytes - lost_before == 304 + 4 * 64 + 4 * 32


SIZES = """
import gc
import psutil
from pytest_rlstability.kits.box2d.registry import ShapeLeak
from pytest_rlstability.kits.box2d.watch import WorldFactory

LAPS = 3000
with WorldFactory() as factory:
    world = factory()

    def lap():
        body = world.CreateDynamicBody()
        body.CreatePolygonFixture(box=(1, 1))
        body.CreateEdgeFixture(vertices=[(0, 0), (1, 1)])
        body.CreateCircleFixture(radius=1)
        world.DestroyBody(body)

    def heap():
        gc.collect()
        used = psutil.heap_info()
        return used.heap_used + used.mmap_used

    for _ in range(LAPS):
        lap()
    before, lost_before = heap(), ShapeLeak.lost_bytes
    for _ in range(LAPS):
        lap()
    print((heap() - before) / LAPS, (ShapeLeak.lost_bytes - lost_before) / LAPS)
"""


def test_the_sizes_are_right() -> None:
    psutil = pytest.importorskip("psutil")
    if not hasattr(psutil, "heap_info"):
        pytest.skip("psutil cannot look into this C library's heap")
    # In a process of its own: here, other tests' memory comes back in the middle of it.
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", SIZES], capture_output=True, text=True, check=True)
    grown, lost = map(float, run.stdout.split())
    assert lost == 304 + 64 + 32
    assert abs(grown - lost) < 24  # less than the leak judge can see


# Gymnasium

ENVIRONMENTS = ["LunarLander-v3", "BipedalWalker-v3", "CarRacing-v3"]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_gymnasium_environments_are_innocent(box2d_world: WorldFactory, name: str) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("pygame")
    env = gymnasium.make(name)
    watch = box2d_world.watch(env)
    for lap in range(13):
        env.reset(seed=lap)
        for _ in range(3):
            env.step(env.action_space.sample())
    census = watch.census()
    assert census["dynamic"] >= 3
    assert census["joints"] >= 2
    assert watch.laps == 13
    env.close()


def test_a_leaking_environment_is_caught_at_reset(box2d_world: WorldFactory) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("pygame")
    env = gymnasium.make("BipedalWalker-v3")
    box2d_world.watch(env, limits={"dynamic": {"per_lap": 0}})
    env.reset(seed=0)
    env.unwrapped.world.CreateDynamicBody()
    with pytest.raises(VerdictFailure, match="dynamic grew by 1 per lap"):
        env.reset(seed=0)


# With the leak judge

PROMISES = """
    import Box2D
    import pytest

    @pytest.mark.rl_no_leak
    def test_tidy(rl_laps, box2d_world):
        world = box2d_world()
        for _ in rl_laps:
            body = world.CreateDynamicBody()
            body.CreatePolygonFixture(box=(1, 1))
            world.DestroyBody(body)

    def test_untidy(rl_laps, box2d_world):
        world = box2d_world()
        for _ in rl_laps:
            world.CreateStaticBody()

    # No lap and no census here: the worlds are judged when the test ends.

    LIMITS = {"static": {"critical": 2}}

    def fill(world):
        for _ in range(3):
            world.CreateStaticBody()

    def test_made(box2d_world):
        fill(box2d_world(limits=LIMITS))

    def test_watched(box2d_world):
        world = Box2D.b2World()
        box2d_world.watch(world, limits=LIMITS)
        fill(world)

    def test_environment(box2d_world):
        class Environment:
            def __init__(self):
                self.world = Box2D.b2World()

            def reset(self):
                pass

        environment = Environment()
        box2d_world.watch(environment, limits=LIMITS)
        fill(environment.world)
"""


@pytest.mark.slow
def test_counts_are_judged_like_memory(run_pytest: Any) -> None:
    outcome = run_pytest(PROMISES)
    assert outcome.tests.pop("test_tidy") == "passed"
    assert "passed" not in outcome.tests.values()
    assert outcome.messages["test_untidy"].startswith("LEAK: probe box2d bodies grows by 1 per lap")
    for name in ("test_made", "test_watched", "test_environment"):
        assert "LEAK: box2d: static reached 3, beyond the critical limit of 2" in outcome.messages[name]


COUNTED = """
    import time
    import Box2D

    class Environment:
        def __init__(self):
            self.world = Box2D.b2World()
            self.world.CreateStaticBody(userData="terrain")

        def reset(self):
            time.sleep(0.03)
            self.world.CreateDynamicBody(userData="food")

    def test_laps(rl_laps, box2d_world):
        environment = Environment()
        box2d_world.watch(environment, classify=lambda body: body.userData, limits={"bodies": {"critical": 99}})
        for _ in zip(range(5), rl_laps):
            environment.world.CreateDynamicBody(userData="food")

    def test_resets(box2d_world):
        environment = Environment()
        box2d_world.watch(environment, classify=lambda body: body.userData, limits={"food": {"critical": 99}})
        for _ in range(5):
            environment.reset()
"""


def test_counts_by_type_and_class_are_in_the_samples(run_pytest: Any) -> None:
    outcome = run_pytest(COUNTED)
    assert set(outcome.tests.values()) == {"passed"}
    for name in ("test_laps", "test_resets"):
        samples = [one for one in outcome.events if one["event"] == "sample" and str(one["test"]).endswith(name)]
        assert len(samples) >= 3
        for sample in samples:
            values = sample["values"]
            assert (values["box2d static"], values["box2d terrain"]) == (1, 1)
            assert values["box2d dynamic"] == values["box2d food"] == sample["lap"]
            assert values["box2d bodies"] == sample["lap"] + 1


class Anchor:
    """User data of a joint that refers to the joint, as a game's own object for it does."""

    joint: Any = None


def blocks_per_lap(world: Any) -> float:
    """What a lap leaves behind that destroys a joint with its body. Box2D itself loses the joint's userData."""

    def lap() -> None:
        left, right = world.CreateDynamicBody(), world.CreateDynamicBody(position=(1, 0))
        anchor = Anchor()
        anchor.joint = world.CreateDistanceJoint(bodyA=left, bodyB=right, anchorA=(0, 0), anchorB=(1, 0))
        anchor.joint.userData = anchor
        for body in (left, right):
            world.DestroyBody(body)

    for _ in range(20):
        lap()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(200):
        lap()
    gc.collect()
    return (sys.getallocatedblocks() - before) / 200


def test_user_data_lost_with_a_joint_holds_nothing_of_ours() -> None:
    plain = blocks_per_lap(Box2D.b2World())
    with WorldFactory() as factory:
        assert blocks_per_lap(factory()) < plain + 2


@pytest.mark.parametrize("watched", [False, True])
def test_only_the_test_holds_the_worlds_that_it_keeps(box2d_world: WorldFactory, watched: bool) -> None:
    kept: list[Any] = [box2d_world()]

    def keep(count: int) -> None:
        for _ in range(count):
            kept.append(Box2D.b2World() if watched else box2d_world())
            if watched:
                box2d_world.watch(kept[-1])

    before = census()
    keep(50)
    grown = grown_since(before)
    keep(50)
    assert [grower.container is kept for grower in growers(grown, 50) if grower.grown >= 50] == [True]
    assert box2d_world.census().worlds == 101


@pytest.mark.slow
def test_kept_worlds_are_held_by_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.rl_no_leak(laps=60)
        def test_kept(rl_laps, box2d_world):
            kept = []
            for _ in rl_laps:
                kept.append(box2d_world())
    """)
    result = pytester.runpytest_subprocess("--rl-stability", "--rl-leak-budget=6s")
    result.stdout.fnmatch_lines(["*held by local variable 'kept' of test_kept*"])

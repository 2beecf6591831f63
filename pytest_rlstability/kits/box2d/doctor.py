"""What ``rlstability doctor`` tries of Box2D. Each function runs in a fresh process, and may crash it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_rlstability.steps.doctor_step import Stage


def box2d(rl_stage: Stage) -> None:
    """A few bodies and a joint fall on the ground, and are destroyed in the order that Box2D demands."""
    with rl_stage("import Box2D"):
        from Box2D import b2CircleShape, b2World
    with rl_stage("make world"):
        world = b2World(gravity=(0, -10))
        ground = world.CreateStaticBody(position=(0, 0))
        ground.CreateEdgeFixture(vertices=[(-20, 0), (20, 0)])
        bodies = [world.CreateDynamicBody(position=(index, 5)) for index in range(4)]
        for body in bodies:
            body.CreateFixture(shape=b2CircleShape(radius=0.4), density=1.0)
        joint = world.CreateDistanceJoint(bodyA=bodies[0], bodyB=bodies[1])
    with rl_stage("200 steps"):
        for _ in range(200):
            world.Step(1 / 60, 6, 2)
        assert all(body.position.y > -1 for body in bodies), "a body fell through the ground"
    with rl_stage("destroy"):
        world.DestroyJoint(joint)
        for body in bodies:
            world.DestroyBody(body)


def lunar_lander(rl_stage: Stage) -> None:
    """Gymnasium's Box2D environment, whichever version is installed."""
    import gymnasium

    names = [name for name in gymnasium.registry if name.startswith("LunarLander-v")]
    with rl_stage("make"):
        environment = gymnasium.make(max(names))
    with rl_stage("reset and step"):
        environment.reset(seed=0)
        for _ in range(100):
            _, _, terminated, truncated, _ = environment.step(0)
            if terminated or truncated:
                environment.reset()
    with rl_stage("close"):
        environment.close()

"""Emulator and physics."""

from __future__ import annotations

import os
import tempfile

from pytest_rlstability.doctor.checks.libraries import Stage


def emulator(rl_stage: Stage) -> None:
    """PyBoy with the package's own homebrew ROM: frames, screen, save state, stop."""
    from pytest_rlstability.pyboy.rom import build_rom

    with rl_stage("import pyboy"):
        from pyboy import PyBoy
    with tempfile.TemporaryDirectory() as directory:
        rom = os.path.join(directory, "homebrew.gb")
        with open(rom, "wb") as file:
            file.write(build_rom())
        with rl_stage("start"):
            boy = PyBoy(rom, window="null", sound_emulated=False)
        with rl_stage("120 frames"):
            assert boy.tick(120, True)
        with rl_stage("screen"):
            assert boy.screen.ndarray.shape[:2] == (144, 160)
        with rl_stage("save and load state"):
            with open(os.path.join(directory, "state"), "w+b") as state:
                boy.save_state(state)
                state.seek(0)
                boy.load_state(state)
            boy.tick(1, False)
        with rl_stage("stop"):
            boy.stop(save=False)


def box2d(rl_stage: Stage) -> None:
    """A few bodies and a joint fall on the ground, and go in the order that Box2D demands."""
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
    """Gymnasium's Box2D environment, whichever version of it is there."""
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

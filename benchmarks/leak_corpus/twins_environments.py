"""Environments: Gymnasium, PettingZoo, ALE, MuJoCo, Box2D, PyBoy, pygame. Each case is a leak and its innocent twin."""

from __future__ import annotations

import io
import itertools
import os
from collections import deque
from random import Random
from typing import Any

from leak_corpus import Lap, innocent, leak, twins
from leak_corpus.parts import build_pyboy


def play(env: Any, random: Random) -> Lap:
    """One step of *env* per lap, with resets; what it returns is the info of the step."""
    env.reset(seed=random.randrange(10**6))

    def lap() -> object:
        observation, _, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
        return observation, info

    return lap


@twins("envs")
def env_made_every_lap(random: Random, leaks: bool) -> Lap:
    import gymnasium

    envs: list[object] = []

    def lap() -> None:
        env = gymnasium.make("MountainCar-v0")
        env.reset(seed=1)
        if leaks:
            envs.append(env)
        env.close()

    return lap


@twins("wrapped")
def wrapped_at_every_reset(random: Random, leaks: bool) -> Lap:
    import gymnasium

    wrapped = [gymnasium.make("CartPole-v1")]

    def lap() -> None:
        inner = wrapped[0] if leaks else wrapped[0].unwrapped
        wrapped[0] = gymnasium.wrappers.TimeLimit(inner, 50)
        wrapped[0].unwrapped.reset()

    return lap


@twins("register")
def registered_envs(random: Random, leaks: bool) -> Lap:
    import gymnasium

    numbers = itertools.count()

    def lap() -> None:
        name = f"Corpus{next(numbers) if leaks else 0}-v0"
        gymnasium.register(name, "gymnasium.envs.classic_control:CartPoleEnv")

    return lap


@innocent
def statistics_recorded(random: Random) -> Lap:
    import gymnasium

    return play(gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"), 10**6), random)


@twins("observations")
def frames_stacked(random: Random, leaks: bool) -> Lap:
    import gymnasium

    env = gymnasium.wrappers.FrameStackObservation(gymnasium.make("Acrobot-v1"), 4)
    step = play(env, random)
    observations: deque[object] = deque(maxlen=None if leaks else 64)
    return lambda: observations.append(step())


@twins("trail")
def custom_env(random: Random, leaks: bool) -> Lap:
    import gymnasium
    import numpy

    class Maze(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0, 1, (4,))
        action_space = gymnasium.spaces.Discrete(4)

        def __init__(self) -> None:
            self.trail: list[object] = []

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            if not leaks:
                self.trail = []
            return numpy.zeros(4), {}

        def step(self, action: Any) -> Any:
            self.trail.append((float(self.np_random.random()), action))
            return numpy.zeros(4), 0.0, self.np_random.random() < 0.05, False, {}

    return play(Maze(), random)


def _growing_env(leaks: bool) -> Any:
    import gymnasium
    import numpy

    class Growing(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0, 1, (4,), dtype=numpy.float64)
        action_space = gymnasium.spaces.Discrete(4)

        def __init__(self) -> None:
            self.seen: deque[object] = deque(maxlen=None if leaks else 50)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return numpy.zeros(4), {}

        def step(self, action: Any) -> Any:
            self.seen.append(numpy.ones(500))
            return numpy.zeros(4), 0.0, False, False, {}

    return Growing()


@twins("process", python=False)
def async_vector_workers(random: Random, leaks: bool) -> Lap:
    import gymnasium

    envs = gymnasium.vector.AsyncVectorEnv([lambda: _growing_env(leaks)] * 2)
    envs.reset()
    return lambda: envs.step(envs.action_space.sample())


@twins("seen")
def sync_vector_env(random: Random, leaks: bool) -> Lap:
    import gymnasium

    envs = gymnasium.vector.SyncVectorEnv([lambda: _growing_env(leaks)] * 2)
    envs.reset()
    return lambda: envs.step(envs.action_space.sample())


@twins("process", python=False)
def subproc_vec_env(random: Random, leaks: bool) -> Lap:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs = SubprocVecEnv([lambda: _growing_env(leaks)] * 2, start_method="fork")
    envs.reset()
    return lambda: envs.step([0, 1])


@innocent
def rendered_cartpole(random: Random) -> Lap:
    import gymnasium

    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    step = play(env, random)

    def lap() -> None:
        step()
        env.render()

    return lap


@leak("reset")
def lander_resets(random: Random) -> Lap:
    """Box2D's binding loses some bytes with every shape."""
    import gymnasium

    env = gymnasium.make("LunarLander-v3")
    return lambda: env.reset(seed=random.randrange(10**6))


@innocent
def walker_steps(random: Random) -> Lap:
    import gymnasium

    return play(gymnasium.make("BipedalWalker-v3"), random)


@twins("games")
def tictactoe_games(random: Random, leaks: bool) -> Lap:
    from pettingzoo.classic import tictactoe_v3

    env = tictactoe_v3.env()
    games: list[object] = []

    def lap() -> None:
        env.reset(seed=random.randrange(10**6))
        moves = []
        for _ in env.agent_iter():
            observation, _, terminated, truncated, _ = env.last()
            legal = [i for i, free in enumerate(observation["action_mask"]) if free]
            move = None if terminated or truncated else random.choice(legal)
            moves.append(move)
            env.step(move)
        if leaks:
            games.append(moves)

    return lap


@twins("outcomes")
def parallel_rps(random: Random, leaks: bool) -> Lap:
    from pettingzoo.classic import rps_v2

    env = rps_v2.parallel_env(max_cycles=20)
    env.reset(seed=1)
    outcomes: deque[object] = deque(maxlen=None if leaks else 10)

    def lap() -> None:
        if not env.agents:
            env.reset()
        outcomes.append(env.step({agent: env.action_space(agent).sample() for agent in env.agents}))

    return lap


def _build_ale() -> Any:
    import ale_py
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.loadROM(roms.get_rom_path("pong"))
    return ale


@twins("states")
def ale_states(random: Random, leaks: bool) -> Lap:
    ale = _build_ale()
    states: deque[object] = deque(maxlen=None if leaks else 20)

    def lap() -> None:
        ale.act(random.randrange(3))
        states.append(ale.cloneState())

    return lap


@twins("screens")
def ale_screens(random: Random, leaks: bool) -> Lap:
    ale = _build_ale()
    screens: deque[object] = deque(maxlen=None if leaks else 8)

    def lap() -> None:
        ale.act(random.randrange(3))
        screens.append(ale.getScreenGrayscale()[::2, ::2].copy())
        if ale.game_over():
            ale.reset_game()

    return lap


@innocent
def atari_steps(random: Random) -> Lap:
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    return play(gymnasium.make("ALE/Breakout-v5", obs_type="grayscale"), random)


_HOPPER = """
<mujoco><worldbody><geom type="plane" size="5 5 1"/>
<body pos="0 0 1"><freejoint/><geom type="sphere" size=".1"/></body></worldbody></mujoco>
"""


@twins("simulations", python=False)
def mujoco_data(random: Random, leaks: bool) -> Lap:
    import mujoco

    model = mujoco.MjModel.from_xml_string(_HOPPER)
    simulations: deque[object] = deque(maxlen=None if leaks else 4)

    def lap() -> None:
        data = mujoco.MjData(model)
        mujoco.mj_step(model, data)
        simulations.append(data)

    return lap


@innocent
def mujoco_models(random: Random) -> Lap:
    import mujoco

    def lap() -> None:
        model = mujoco.MjModel.from_xml_string(_HOPPER)
        mujoco.mj_step(model, mujoco.MjData(model), 5)

    return lap


@innocent
def mujoco_steps(random: Random) -> Lap:
    import gymnasium

    return play(gymnasium.make("HalfCheetah-v5"), random)


@twins("emulators")
def emulators(random: Random, leaks: bool) -> Lap:
    emulators: list[object] = []

    def lap() -> None:
        boy = build_pyboy()
        boy.tick(1, False)
        if leaks:
            emulators.append(boy)
        boy.stop(save=False)

    return lap


@twins("screens")
def screen_images(random: Random, leaks: bool) -> Lap:
    boy, screens = build_pyboy(), deque(maxlen=None if leaks else 30)

    def lap() -> None:
        boy.tick(2, True)
        screens.append(boy.screen.image.resize((40, 36)))

    return lap


@twins("checkpoints")
def checkpoints_of_a_game(random: Random, leaks: bool) -> Lap:
    boy = build_pyboy()
    checkpoints: dict[int, io.BytesIO] = {}

    def lap() -> None:
        boy.tick(1, False)
        state = checkpoints[boy.frame_count if leaks else boy.frame_count % 16] = io.BytesIO()
        boy.save_state(state)

    return lap


@twins("CreateDistanceJoint", python=False)
def joints(random: Random, leaks: bool) -> Lap:
    from Box2D import b2World

    world = b2World()
    one, two = world.CreateDynamicBody(position=(0, 0)), world.CreateDynamicBody(position=(2, 0))

    def lap() -> None:
        joint = world.CreateDistanceJoint(bodyA=one, bodyB=two)
        if not leaks:
            world.DestroyJoint(joint)

    return lap


@twins("contacts")
def contacts_noted(random: Random, leaks: bool) -> Lap:
    from Box2D import b2ContactListener, b2World

    contacts: list[object] = []

    class Listener(b2ContactListener):  # type: ignore[misc]
        def BeginContact(self, contact: Any) -> None:  # noqa: N802
            contacts.append((contact.fixtureA.body.position.x, contact.fixtureB.body.position.x))

    listener = Listener()
    world = b2World(gravity=(0, -10), contactListener=listener)
    world.CreateStaticBody(position=(0, 0)).CreateCircleFixture(radius=1)
    ball = world.CreateDynamicBody(position=(0, 3))
    ball.CreateCircleFixture(radius=0.5, density=1)

    def lap() -> None:
        ball.position, ball.linearVelocity = (random.random() - 0.5, 1.6), (0, -3)
        for _ in range(4):
            world.Step(1 / 60, 4, 2)
        if not leaks:
            contacts.clear()

    return lap


@leak("CreateCircleFixture")
def worlds_dropped(random: Random) -> Lap:
    """Box2D's binding loses 32 bytes with every circle."""
    from Box2D import b2World

    def lap() -> None:
        world = b2World(gravity=(0, -10))
        world.CreateDynamicBody(position=(0, random.random())).CreateCircleFixture(radius=1)
        world.Step(1 / 60, 4, 2)

    return lap


def _pygame() -> Any:
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
    import pygame

    pygame.display.init()
    pygame.font.init()
    return pygame


@twins("surfaces")
def surfaces(random: Random, leaks: bool) -> Lap:
    pygame = _pygame()
    surfaces: deque[object] = deque(maxlen=None if leaks else 10)

    def lap() -> None:
        surface = pygame.Surface((40, 30))
        surface.fill((random.randrange(255), 0, 0))
        surfaces.append(surface)

    return lap


@innocent
def text_rendered(random: Random) -> Lap:
    pygame = _pygame()
    font, screen = pygame.font.Font(None, 20), pygame.display.set_mode((160, 120))

    def lap() -> None:
        screen.blit(font.render(f"reward {random.randrange(1000)}", True, (255, 255, 255)), (0, 0))
        pygame.display.flip()
        pygame.event.pump()

    return lap


@twins("sprites")
def sprites(random: Random, leaks: bool) -> Lap:
    pygame = _pygame()
    sprites = pygame.sprite.Group()

    def lap() -> None:
        sprite = pygame.sprite.Sprite(sprites)
        sprite.rect = pygame.Rect(0, 0, 4, 4)
        if not leaks:
            sprite.kill()

    return lap


@innocent
def events_read(random: Random) -> Lap:
    pygame = _pygame()
    pygame.display.set_mode((64, 64))

    def lap() -> None:
        pygame.event.post(pygame.event.Event(pygame.USEREVENT, {"reward": random.random()}))
        pygame.event.get()

    return lap

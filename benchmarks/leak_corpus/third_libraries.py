"""Third round: environments, training, pictures, databases, connections, processes and memory of C code."""

from __future__ import annotations

import ctypes
import http.server
import itertools
import mmap
import multiprocessing
import os
import sqlite3
import subprocess
import tempfile
import threading
from random import Random
from typing import Any

from leak_corpus import Lap, innocent, leak, twins
from leak_corpus.parts import build_pyboy

_libc = ctypes.CDLL(None)
_libc.strdup.restype = _libc.aligned_alloc.restype = _libc.opendir.restype = ctypes.c_void_p
_libc.strdup.argtypes, _libc.opendir.argtypes = [ctypes.c_char_p], [ctypes.c_char_p]
_libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_libc.free.argtypes = _libc.closedir.argtypes = [ctypes.c_void_p]


@twins("strdup", python=False, size=80)
def strings_of_c(random: Random, leaks: bool) -> Lap:
    def lap() -> None:
        text = _libc.strdup(b"x" * 64)
        if not leaks:
            _libc.free(text)

    return lap


@twins("aligned_alloc", python=False, size=200_000)
def pictures_of_c(random: Random, leaks: bool) -> Lap:
    def lap() -> None:
        block = _libc.aligned_alloc(64, 200_000)
        ctypes.memset(block, 1, 200_000)
        if not leaks:
            _libc.free(block)

    return lap


@twins("timerfd_create", python=False, size=1)
def timer_descriptors(random: Random, leaks: bool) -> Lap:
    def lap() -> None:
        descriptor = _libc.timerfd_create(1, 0)
        if not leaks:
            os.close(descriptor)

    return lap


@twins("opendir", python=False, size=1)
def directories_of_c(random: Random, leaks: bool) -> Lap:
    def lap() -> None:
        directory = _libc.opendir(b"/tmp")
        if not leaks:
            _libc.closedir(directory)

    return lap


@twins("schedule(", python=False)
def watchdog_observers(random: Random, leaks: bool) -> Lap:
    from watchdog.events import FileSystemEventHandler
    from watchdog.observers import Observer

    directory = tempfile.mkdtemp()

    def lap() -> None:
        observer = Observer()
        observer.schedule(FileSystemEventHandler(), directory)
        observer.start()
        if not leaks:
            observer.stop()
            observer.join()

    return lap


def _env_with_history(leaks: bool, files: bool = False) -> Any:
    import gymnasium

    class Env(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1, 1, (4,))
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self) -> None:
            self.history: list[Any] = []

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            self.history.append(open("/dev/null") if files else bytes(1000))  # noqa: SIM115
            if not leaks:
                self.history.clear()
            return self.observation_space.sample(), 0.0, False, False, {}

    return Env()


def _vector_lap(leaks: bool, files: bool) -> Lap:
    from gymnasium.vector import AsyncVectorEnv

    envs = AsyncVectorEnv([lambda: _env_with_history(leaks, files)] * 2, context="fork")
    envs.reset()
    return lambda: envs.step(envs.action_space.sample())


@twins("", python=False)
def history_in_async_workers(random: Random, leaks: bool) -> Lap:
    return _vector_lap(leaks, False)


@twins("", python=False)
def files_in_async_workers(random: Random, leaks: bool) -> Lap:
    return _vector_lap(leaks, True)


@twins("frame_list", python=False)
def frames_never_rendered(random: Random, leaks: bool) -> Lap:
    import gymnasium
    from gymnasium.wrappers import RenderCollection

    os.environ["SDL_VIDEODRIVER"] = "dummy"
    env = RenderCollection(gymnasium.make("CartPole-v1", render_mode="rgb_array"), pop_frames=True, reset_clean=False)
    env.reset()

    def lap() -> None:
        if env.step(env.action_space.sample())[2]:
            env.reset()
        if not leaks:
            env.render()

    return lap


@innocent
def statistics_of_100_000_episodes(random: Random) -> Lap:
    import gymnasium
    from gymnasium.wrappers import RecordEpisodeStatistics

    env = RecordEpisodeStatistics(gymnasium.make("CartPole-v1"), buffer_length=100_000)

    def lap() -> None:
        env.reset()
        while not env.step(env.action_space.sample())[2]:
            pass

    return lap


@innocent
def vector_env_made_and_closed(random: Random) -> Lap:
    import gymnasium

    def lap() -> None:
        envs = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
        envs.reset(seed=random.randrange(1000))
        envs.step(envs.action_space.sample())
        envs.close()

    return lap


@twins("configure(", python=False)
def loggers_of_sb3(random: Random, leaks: bool) -> Lap:
    from stable_baselines3.common.logger import configure

    directory, kept = tempfile.mkdtemp(), []

    def lap() -> None:
        logger = configure(directory, ["csv"])
        logger.record("loss", random.random())
        logger.dump(1)
        if leaks:
            kept.append(logger)
        else:
            logger.close()

    return lap


@innocent
def a2c_learns(random: Random) -> Lap:
    from stable_baselines3 import A2C

    model = A2C("MlpPolicy", "CartPole-v1", device="cpu", n_steps=8)
    return lambda: model.learn(8)


@innocent
def policy_evaluated(random: Random) -> Lap:
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy

    model = PPO("MlpPolicy", "CartPole-v1", device="cpu")
    return lambda: evaluate_policy(model, model.get_env(), n_eval_episodes=1, warn=False)


@twins("rnn(", python=False)
def hidden_state_not_detached(random: Random, leaks: bool) -> Lap:
    import torch

    torch.set_num_threads(1)
    rnn, state = torch.nn.GRUCell(4, 8), torch.zeros(1, 8)

    def lap() -> None:
        nonlocal state
        state = rnn(torch.ones(1, 4), state)
        if not leaks:
            state = state.detach()

    return lap


@twins("batches")
def torchrl_collector(random: Random, leaks: bool) -> Lap:
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv

    collector = Collector(GymEnv("CartPole-v1"), frames_per_batch=8, total_frames=-1)
    stream, batches = iter(collector), []

    def lap() -> None:
        batch = next(stream)
        if leaks:
            batches.append(batch.clone())

    return lap


@innocent
def torchrl_list_storage(random: Random) -> Lap:
    import torch
    from torchrl.data import ListStorage, ReplayBuffer

    buffer = ReplayBuffer(storage=ListStorage(1000), batch_size=4)

    def lap() -> None:
        buffer.add(torch.zeros(10))
        buffer.sample()

    return lap


@twins("games")
def connect_four(random: Random, leaks: bool) -> Lap:
    from pettingzoo.classic import connect_four_v3

    env, games = connect_four_v3.env(), []

    def lap() -> None:
        env.reset()
        moves = []
        for _ in env.agent_iter(8):
            observation, _, end, cut, _ = env.last()
            moves.append(None if end or cut else int(observation["action_mask"].nonzero()[0][0]))
            env.step(moves[-1])
        if leaks:
            games.append(moves)

    return lap


@innocent
def pong_made_and_closed(random: Random) -> Lap:
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)

    def lap() -> None:
        env = gymnasium.make("ALE/Pong-v5")
        env.reset(seed=random.randrange(1000))
        for _ in range(5):
            env.step(env.action_space.sample())
        env.close()

    return lap


@twins("models", python=False)
def mujoco_specs(random: Random, leaks: bool) -> Lap:
    import mujoco

    models = []

    def lap() -> None:
        spec = mujoco.MjSpec()
        spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[random.random() + 0.1, 0, 0])
        model = spec.compile()
        if leaks:
            models.append(model)

    return lap


@twins("sprites")
def sprites_of_pyboy(random: Random, leaks: bool) -> Lap:
    game, sprites = build_pyboy(), []

    def lap() -> None:
        game.tick(1, False)
        found = [(sprite.x, sprite.y) for sprite in map(game.get_sprite, range(4))]
        if leaks:
            sprites.append(found)

    return lap


@leak("CreateDynamicBody")
def bodies_spawned(random: Random) -> Lap:
    import Box2D

    world = Box2D.b2World(gravity=(0, 0))
    return lambda: world.CreateDynamicBody(position=(random.random(), 1e3))


@innocent
def bodies_recycled(random: Random) -> Lap:
    import Box2D

    world = Box2D.b2World(gravity=(0, -10))
    world.CreateStaticBody(shapes=Box2D.b2PolygonShape(box=(50, 1)))
    bodies = [world.CreateDynamicBody(position=(n * 3, 9)) for n in range(20)]
    for body in bodies:
        body.CreateCircleFixture(radius=0.5, density=1)

    def lap() -> None:
        bodies[random.randrange(20)].position = (random.random() * 9, 9)
        world.Step(1 / 50, 6, 2)

    return lap


@twins("masks", python=False)
def masks_of_pygame(random: Random, leaks: bool) -> Lap:
    import pygame

    surface, masks = pygame.Surface((64, 64), pygame.SRCALPHA), []

    def lap() -> None:
        mask = pygame.mask.from_surface(pygame.transform.rotate(surface, random.randrange(360)))
        if leaks:
            masks.append(mask)

    return lap


@innocent
def pictures_of_any_size(random: Random) -> Lap:
    from PIL import Image

    picture = Image.new("RGB", (160, 144))

    def lap() -> None:
        small = picture.resize((random.randrange(20, 200), random.randrange(20, 200))).convert("L")
        small.tobytes()

    return lap


@twins("mpl_connect")
def callbacks_of_a_figure(random: Random, leaks: bool) -> Lap:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure()

    def lap() -> None:
        number = figure.canvas.mpl_connect("draw_event", _Callback())
        if not leaks:
            figure.canvas.mpl_disconnect(number)

    return lap


class _Callback:
    def __call__(self, event: object) -> None: ...


@innocent
def histograms_written(random: Random) -> Lap:
    import numpy
    from torch.utils.tensorboard import SummaryWriter

    writer, steps = SummaryWriter(tempfile.mkdtemp()), itertools.count()
    return lambda: writer.add_histogram("weights", numpy.full(100, random.random()), next(steps))


@twins("cursors", python=False)
def cursors_of_sqlite(random: Random, leaks: bool) -> Lap:
    database, cursors = sqlite3.connect(":memory:"), []
    database.execute("create table steps (reward real)")

    def lap() -> None:
        cursor = database.execute(f"select {random.randrange(1000)}, reward from steps")
        if leaks:
            cursors.append(cursor)

    return lap


@innocent
def pages_of_sqlite(random: Random) -> Lap:
    database = sqlite3.connect(os.path.join(tempfile.mkdtemp(), "steps.db"))
    database.execute("create table steps (number integer primary key, observation blob)")
    database.executemany("insert into steps values (?, ?)", ((n, bytes(2000)) for n in range(5000)))
    database.commit()
    query = "select observation from steps where number = ?"
    return lambda: database.execute(query, (random.randrange(5000),)).fetchone()


@innocent
def rows_replaced_in_sqlite(random: Random) -> Lap:
    database = sqlite3.connect(":memory:")
    database.execute("create table ring (slot integer primary key, observation blob)")
    steps = itertools.count()

    def lap() -> None:
        database.execute("insert or replace into ring values (?, ?)", (next(steps) % 3000, random.randbytes(300)))
        database.commit()

    return lap


@twins("context", python=False)
def contexts_of_zmq(random: Random, leaks: bool) -> Lap:
    import zmq

    kept = []

    def lap() -> None:
        context = zmq.Context()
        socket = context.socket(zmq.PUB)
        socket.linger = 0
        socket.bind_to_random_port("tcp://127.0.0.1")
        if leaks:
            kept.append((context, socket))
        else:
            socket.close()
            context.term()

    return lap


class _Cookies(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    numbers = itertools.count()

    def do_GET(self) -> None:
        self.send_response(200)
        name = next(self.numbers) if self.path == "/new" else 1
        self.send_header("Set-Cookie", f"session{name}=1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@twins("")
def cookies_of_a_session(random: Random, leaks: bool) -> Lap:
    import requests

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Cookies)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    session = requests.Session()
    session.trust_env = False
    path = f"http://127.0.0.1:{server.server_port}/{'new' if leaks else 'same'}"

    def lap() -> None:
        session.get(path)
        if leaks and len(session.cookies) > 60:  # a real jar is not sent whole
            jars.append(session.cookies)
            session.cookies = type(session.cookies)()

    jars: list[Any] = []
    return lap


@twins("array", python=False)
def arrays_shared_with_workers(random: Random, leaks: bool) -> Lap:
    arrays = []

    def lap() -> None:
        array = multiprocessing.RawArray("d", 1000)
        if leaks:
            arrays.append(array)

    return lap


@twins("locks", python=False)
def locks_between_processes(random: Random, leaks: bool) -> Lap:
    locks = []

    def lap() -> None:
        lock = multiprocessing.Lock()
        if leaks:
            locks.append(lock)

    return lap


@twins("tensor", python=False)
def tensors_shared_with_workers(random: Random, leaks: bool) -> Lap:
    import torch

    shared = []

    def lap() -> None:
        tensor = torch.zeros(1000).share_memory_()
        if leaks:
            shared.append(tensor)

    return lap


@twins("fork(", python=False, size=1)
def children_never_waited_for(random: Random, leaks: bool) -> Lap:
    def lap() -> None:
        child = os.fork()
        if not child:
            os._exit(0)
        if not leaks:
            os.waitpid(child, 0)

    return lap


@twins("", python=False)
def managers(random: Random, leaks: bool) -> Lap:
    kept: list[Any] = []

    def lap() -> None:
        manager = multiprocessing.get_context("fork").Manager()
        manager.dict()["score"] = 1
        if leaks:
            kept.append(manager)
        else:
            manager.shutdown()

    return lap


@twins("window", python=False)
def memory_maps_of_a_file(random: Random, leaks: bool) -> Lap:
    windows, file = [], tempfile.TemporaryFile()  # noqa: SIM115
    file.truncate(1 << 20)

    def lap() -> None:
        window = mmap.mmap(file.fileno(), 65536)
        window[:10] = bytes(10)
        if leaks:
            windows.append(window)
        else:
            window.close()

    return lap


@twins("", python=False)
def files_of_hdf5(random: Random, leaks: bool) -> Lap:
    import h5py

    names, directory, kept = itertools.count(), tempfile.mkdtemp(), []

    def lap() -> None:
        file = h5py.File(os.path.join(directory, f"{next(names) % 5 if not leaks else next(names)}.h5"), "w")
        file.create_dataset("steps", data=[1.0, 2.0])
        if leaks:
            kept.append(file)
        else:
            file.close()

    return lap


@innocent
def programs_run(random: Random) -> Lap:
    return lambda: subprocess.run(["true"], check=True)


@innocent
def arrays_in_a_pool(random: Random) -> Lap:
    from concurrent.futures import ThreadPoolExecutor

    import numpy

    pool = ThreadPoolExecutor(3)
    return lambda: list(pool.map(lambda _: numpy.ones(random.randrange(1, 60_000)).sum(), range(6)))


@innocent
def lines_appended_to_a_file(random: Random) -> Lap:
    file = tempfile.TemporaryFile("w")  # noqa: SIM115

    def lap() -> None:
        file.write(f"{random.random()}\n" * 20)
        file.flush()

    return lap

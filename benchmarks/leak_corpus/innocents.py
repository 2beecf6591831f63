"""What grows for a while, jumps, or churns, and does not leak."""

from __future__ import annotations

import asyncio
import functools
import importlib
import io
import json
import logging
import os
import pickle
import queue
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import shared_memory
from random import Random

from leak_corpus import Lap, innocent
from leak_corpus.parts import build_pyboy


@innocent
def cache_with_limit(random: Random) -> Lap:
    @functools.lru_cache(maxsize=128)
    def value(state: int) -> bytearray:
        return bytearray(700)

    return lambda: value(random.randrange(10**9))


@innocent
def cache_with_large_limit(random: Random) -> Lap:
    @functools.lru_cache(maxsize=50_000_000)
    def value(state: int) -> list[int]:
        return [state] * 8

    states = iter(range(10**9))
    return lambda: value(next(states))


@innocent
def cache_of_its_own(random: Random) -> Lap:
    cache: OrderedDict[int, list[float]] = OrderedDict()

    def lap() -> None:
        cache[random.randrange(10**9)] = [random.random()] * 5
        if len(cache) > 1000:
            cache.popitem(last=False)

    return lap


@innocent
def frames_in_deque(random: Random) -> Lap:
    import numpy

    frames: deque[object] = deque(maxlen=2000)
    return lambda: frames.append(numpy.full((30, 30), random.random()))


@innocent
def ring_of_arrays(random: Random) -> Lap:
    import numpy

    ring, steps = numpy.zeros((5000, 64)), iter(range(10**9))

    def lap() -> None:
        ring[next(steps) % 5000] = random.random()

    return lap


@innocent
def states_of_a_small_world(random: Random) -> Lap:
    values: dict[int, list[float]] = {}
    return lambda: values.setdefault(random.randrange(2000), [0.0, 0.0])


@innocent
def population(random: Random) -> Lap:
    alive: list[bytearray] = [bytearray(300) for _ in range(200)]

    def lap() -> None:
        if random.random() < len(alive) / 400:
            alive.pop(random.randrange(len(alive)))
        else:
            alive.append(bytearray(random.randrange(100, 500)))

    return lap


@innocent
def churn(random: Random) -> Lap:
    def lap() -> None:
        parts = [bytearray(random.randrange(1, 90_000)) for _ in range(30)]
        random.shuffle(parts)
        del parts[: random.randrange(30)]

    return lap


@innocent
def spikes(random: Random) -> Lap:
    return lambda: bytearray(20_000_000 if random.random() < 0.01 else 100)


@innocent
def short_sawtooth(random: Random) -> Lap:
    batch: list[bytearray] = []

    def lap() -> None:
        batch.append(bytearray(2048))
        if len(batch) >= 40:
            batch.clear()

    return lap


@innocent
def long_sawtooth(random: Random) -> Lap:
    batch: list[list[float]] = []

    def lap() -> None:
        batch.append([random.random() for _ in range(6)])
        if len(batch) >= 700:
            batch.clear()

    return lap


@innocent
def cycles(random: Random) -> Lap:
    class Node:
        other: object = None

    def lap() -> None:
        one, two = Node(), Node()
        one.other, two.other = two, one

    return lap


@innocent
def cycles_in_deque(random: Random) -> Lap:
    class Episode:
        def __init__(self) -> None:
            self.me = self
            self.rewards = [0.0] * 10

    recent: deque[Episode] = deque(maxlen=50)
    return lambda: recent.append(Episode())


@innocent
def late_imports(random: Random) -> Lap:
    laps = iter(range(10**9))

    def lap() -> None:
        number = next(laps)
        if number == 60:
            importlib.import_module("xml.dom.minidom")
        elif number == 400:
            importlib.import_module("imaplib")
        elif number == 3000:
            importlib.import_module("zipapp")

    return lap


@innocent
def thread_joined(random: Random) -> Lap:
    def lap() -> None:
        thread = threading.Thread(target=sum, args=(range(500),))
        thread.start()
        thread.join()

    return lap


@innocent
def pool_warms_up(random: Random) -> Lap:
    pool = ThreadPoolExecutor(40)
    return lambda: pool.submit(abs, -3).result()


@innocent
def queue_between_threads(random: Random) -> Lap:
    work: queue.Queue[object] = queue.Queue(maxsize=100)
    done: queue.Queue[object] = queue.Queue()

    def serve() -> None:
        while True:
            done.put(work.get())

    threading.Thread(target=serve, daemon=True).start()

    def lap() -> None:
        work.put(bytes(50))
        done.get()

    return lap


@innocent
def process_waited_for(random: Random) -> Lap:
    return lambda: subprocess.run(["true"], check=True)


@innocent
def descriptors_closed(random: Random) -> Lap:
    def lap() -> None:
        one, two = socket.socketpair()
        one.close()
        two.close()
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"state")

    return lap


@innocent
def segment_unlinked(random: Random) -> Lap:
    def lap() -> None:
        segment = shared_memory.SharedMemory(create=True, size=4096)
        segment.close()
        segment.unlink()

    return lap


@innocent
def logs_and_warns(random: Random) -> Lap:
    log = logging.getLogger("trainer")

    def lap() -> None:
        log.info("reward %s", random.random())
        warnings.warn("deprecated step API", DeprecationWarning, stacklevel=1)

    return lap


@innocent
def patterns_and_json(random: Random) -> Lap:
    def lap() -> None:
        re.compile(f"env-{random.randrange(10**6)}")
        json.loads(json.dumps({"observation": [random.random() for _ in range(20)]}))

    return lap


@innocent
def pickled_and_back(random: Random) -> Lap:
    return lambda: pickle.loads(
        pickle.dumps({"weights": [random.random() for _ in range(100)], "buffer": io.BytesIO()})
    )


@innocent
def weak_cache(random: Random) -> Lap:
    class State:
        pass

    cache: weakref.WeakValueDictionary[int, State] = weakref.WeakValueDictionary()

    def lap() -> None:
        state = State()
        cache[random.randrange(10**9)] = state

    return lap


@innocent
def exceptions_caught(random: Random) -> Lap:
    def lap() -> None:
        try:
            int("not a number")
        except ValueError as error:
            str(error)

    return lap


@innocent
def event_loop_per_lap(random: Random) -> Lap:
    async def step() -> None:
        await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))

    return lambda: asyncio.run(step())


@innocent
def database_closed(random: Random) -> Lap:
    def lap() -> None:
        connection = sqlite3.connect(":memory:")
        connection.execute("create table episodes (reward real)")
        connection.execute("insert into episodes values (?)", (random.random(),))
        connection.close()

    return lap


@innocent
def images_resized(random: Random) -> Lap:
    from PIL import Image

    image = Image.new("L", (160, 144))
    return lambda: image.resize((84, 84)).tobytes()


@innocent
def adam_steps(random: Random) -> Lap:
    import torch

    network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    optimizer = torch.optim.Adam(network.parameters())

    def lap() -> None:
        optimizer.zero_grad()
        network(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()

    return lap


@innocent
def losses_detached(random: Random) -> Lap:
    import torch

    network, recent = torch.nn.Linear(8, 2), deque[object](maxlen=100)
    return lambda: recent.append(network(torch.randn(4, 8)).mean().detach())


@innocent
def pyboy_ticks(random: Random) -> Lap:
    boy = build_pyboy()

    def lap() -> None:
        boy.button(random.choice(("a", "b", "up")))
        boy.tick(3, True)
        boy.screen.ndarray.mean()

    return lap


@innocent
def pyboy_state_restored(random: Random) -> Lap:
    boy, state = build_pyboy(), io.BytesIO()
    boy.save_state(state)

    def lap() -> None:
        state.seek(0)
        boy.load_state(state)
        boy.tick(2, False)

    return lap


@innocent
def box2d_destroyed(random: Random) -> Lap:
    from Box2D import b2World

    world = b2World()

    def lap() -> None:
        bodies = [world.CreateDynamicBody(position=(random.random(), i)) for i in range(4)]
        world.Step(1 / 60, 4, 2)
        for body in bodies:
            world.DestroyBody(body)

    return lap


@innocent
def cartpole_episodes(random: Random) -> Lap:
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    env.reset(seed=random.randrange(10**6))

    def lap() -> None:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()

    return lap


@innocent
def vector_env_workers(random: Random) -> Lap:
    import gymnasium

    envs = gymnasium.vector.AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    envs.reset(seed=random.randrange(10**6))
    return lambda: envs.step(envs.action_space.sample())


@innocent
def ppo_learns(random: Random) -> Lap:
    from stable_baselines3 import PPO

    seed = random.randrange(10**6)
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, n_epochs=1, device="cpu", seed=seed)
    return lambda: model.learn(32)


@innocent
def dqn_learns(random: Random) -> Lap:
    from stable_baselines3 import DQN

    seed = random.randrange(10**6)
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=500, learning_starts=10, device="cpu", seed=seed)
    return lambda: model.learn(16, reset_num_timesteps=False)


_ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


@innocent
def worker_answers(random: Random) -> Lap:
    import atexit

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    worker = subprocess.Popen([sys.executable, "-c", _ECHO], bufsize=0, **pipes)  # type: ignore[call-overload]
    atexit.register(worker.wait)
    atexit.register(worker.kill)

    def lap() -> None:
        worker.stdin.write(b"step\n")
        worker.stdout.readline()

    return lap


@innocent
def environment_variables(random: Random) -> Lap:
    def lap() -> None:
        os.environ["LEAK_CORPUS"] = str(random.randrange(100))

    return lap

"""Python objects that are kept: histories, caches, graphs, wrappers."""

from __future__ import annotations

import asyncio
import functools
import io
import logging
from collections import deque
from random import Random

from leak_corpus import Lap, leak
from leak_corpus.parts import build_pyboy


class Recorder:
    """Stands for the many classes that keep what they see."""

    history: list[object] = []

    def __init__(self) -> None:
        self.events: list[object] = []
        self.log = ""
        self.seen: set[object] = set()
        self.cache: dict[object, object] = {}


@leak("events", python=True)
def event_list(random: Random) -> Lap:
    recorder = Recorder()
    return lambda: recorder.events.append({"reward": random.random(), "done": False})


@leak("infos", python=True)
def every_tenth_lap(random: Random) -> Lap:
    infos: list[object] = []
    steps = [0]

    def lap() -> None:
        steps[0] += 1
        if steps[0] % 10 == 0:
            infos.append([random.random() for _ in range(30)])

    return lap


@leak("numbers", python=True)
def one_integer(random: Random) -> Lap:
    numbers: list[int] = []
    return lambda: numbers.append(random.randrange(10**6, 10**9))


@leak("history", python=True)
def observations_in_class(random: Random) -> Lap:
    import numpy

    observation = numpy.zeros((84, 84), dtype=numpy.uint8)
    return lambda: Recorder.history.append(observation.copy())


@leak("images", python=True)
def pil_images(random: Random) -> Lap:
    from PIL import Image

    images: list[object] = []
    return lambda: images.append(Image.new("RGB", (40, 36)).resize((80, 72)))


class Wrapper:
    def __init__(self, env: object) -> None:
        self.env = env


@leak("Wrapper(", python=True)
def wrappers_stacked(random: Random) -> Lap:
    holder = [Wrapper(None)]

    def lap() -> None:
        holder[0] = Wrapper(holder[0])

    return lap


@leak("cache", python=True)
def cache_by_observation(random: Random) -> Lap:
    recorder = Recorder()

    def lap() -> None:
        recorder.cache[random.getrandbits(64).to_bytes(8, "little")] = random.random()

    return lap


@leak("seen", python=True)
def states_seen(random: Random) -> Lap:
    recorder = Recorder()
    return lambda: recorder.seen.add((random.random(), random.random()))


@leak("lru_cache", python=True)
def cached_method(random: Random) -> Lap:
    class Env:
        @functools.cache  # noqa: B019
        def value(self, state: int) -> list[int]:
            return [state] * 4

    return lambda: Env().value(3)


@leak("hooks", python=True)
def callbacks_registered(random: Random) -> Lap:
    hooks: list[object] = []

    class Env:
        def on_step(self) -> None: ...

    return lambda: hooks.append(Env().on_step)


@leak("errors", python=True)
def exceptions_kept(random: Random) -> Lap:
    errors: list[Exception] = []

    def lap() -> None:
        try:
            raise ValueError("lost connection")
        except ValueError as error:
            errors.append(error)

    return lap


@leak("rollouts", python=True)
def generators_never_closed(random: Random) -> Lap:
    rollouts: list[object] = []

    def rollout():  # type: ignore[no-untyped-def]
        yield [0.0] * 20

    def lap() -> None:
        started = rollout()
        next(started)
        rollouts.append(started)

    return lap


@leak("getLogger", python=True)
def logger_per_env(random: Random) -> Lap:
    number = iter(range(10**9))
    return lambda: logging.getLogger(f"env-{next(number)}")


@leak("transitions", python=True)
def deque_without_limit(random: Random) -> Lap:
    transitions: deque[object] = deque()
    return lambda: transitions.append((random.random(), random.random(), 0))


@leak("log", python=True)
def text_grows(random: Random) -> Lap:
    recorder = Recorder()

    def lap() -> None:
        recorder.log += "step done, reward 1.0, episode goes on, nothing to see here......"

    return lap


@leak("rewards", python=True)
def array_appended(random: Random) -> Lap:
    import numpy

    rewards = [numpy.zeros(8)]

    def lap() -> None:
        rewards[0] = numpy.append(rewards[0], numpy.ones(8))

    return lap


@leak("states", python=True)
def save_states_kept(random: Random) -> Lap:
    boy = build_pyboy()
    states: list[io.BytesIO] = []

    def lap() -> None:
        boy.tick(1, False)
        state = io.BytesIO()
        boy.save_state(state)
        states.append(state)

    return lap


@leak("total_loss", python=True)
def loss_with_graph(random: Random) -> Lap:
    import torch

    network = torch.nn.Linear(16, 4)
    total_loss = [torch.zeros(())]

    def lap() -> None:
        total_loss[0] = total_loss[0] + network(torch.ones(2, 16)).pow(2).mean()

    return lap


@leak("states", python=True)
def hidden_states_kept(random: Random) -> Lap:
    import torch

    cell = torch.nn.GRUCell(8, 8)
    states: list[object] = []
    return lambda: states.append(cell(torch.ones(1, 8)))


@leak("tasks", python=True)
def tasks_never_done(random: Random) -> Lap:
    loop = asyncio.new_event_loop()
    tasks: list[object] = []
    return lambda: tasks.append(loop.create_future())


@leak("registry", python=True)
def class_per_env(random: Random) -> Lap:
    registry: dict[int, type] = {}
    return lambda: registry.__setitem__(len(registry), type("Env", (), {}))

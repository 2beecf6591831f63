"""Training and pictures: torch, SB3, collectors, tensorboard, PIL, matplotlib, OpenCV."""

from __future__ import annotations

import io
import itertools
import os
import queue
import tempfile
import threading
from collections import deque
from random import Random
from typing import Any

from leak_corpus import Lap, innocent, twins


def _network() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))


@twins("losses")
def losses_of_training(random: Random, leaks: bool) -> Lap:
    import torch

    network, losses = _network(), []

    def lap() -> None:
        loss = network(torch.randn(4, 8)).square().mean()
        loss.backward()
        losses.append(loss if leaks else loss.item())
        if not leaks and len(losses) > 50:
            losses.clear()

    return lap


@twins("register_forward_hook")
def hooks_on_a_module(random: Random, leaks: bool) -> Lap:
    import torch

    network = _network()

    def lap() -> None:
        handle = network.register_forward_hook(lambda *_: None)
        with torch.no_grad():
            network(torch.zeros(1, 8))
        if not leaks:
            handle.remove()

    return lap


@twins("league")
def self_play_league(random: Random, leaks: bool) -> Lap:
    network = _network()
    league: deque[object] = deque(maxlen=None if leaks else 5)
    return lambda: league.append({name: value.clone() for name, value in network.state_dict().items()})


@innocent
def checkpoints_written(random: Random) -> Lap:
    import torch

    network = _network()
    return lambda: torch.save(network.state_dict(), io.BytesIO())


@innocent
def convolutions_of_many_shapes(random: Random) -> Lap:
    """oneDNN keeps a kernel for each shape, up to a limit of its own."""
    import torch

    layer = torch.nn.Conv2d(1, 4, 3)

    def lap() -> None:
        with torch.no_grad():
            layer(torch.zeros(1, 1, random.randrange(10, 50), random.randrange(10, 50)))

    return lap


@innocent
def cnn_with_changing_batches(random: Random) -> Lap:
    import torch

    network = torch.nn.Sequential(
        torch.nn.Conv2d(4, 16, 8, 4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 400, 4)
    )
    optimizer = torch.optim.Adam(network.parameters())

    def lap() -> None:
        optimizer.zero_grad()
        network(torch.rand(random.choice((1, 4, 16)), 4, 84, 84)).square().mean().backward()
        optimizer.step()

    return lap


@innocent
def traced_once(random: Random) -> Lap:
    import torch

    traced = torch.jit.trace(_network(), torch.zeros(1, 8))
    return lambda: traced(torch.randn(2, 8))


@twins("add_param_group")
def parameter_groups(random: Random, leaks: bool) -> Lap:
    import torch

    optimizer = torch.optim.SGD(_network().parameters(), 0.1)

    def lap() -> None:
        if leaks:
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(4))]})
        else:
            torch.optim.SGD(_network().parameters(), 0.1)

    return lap


@twins("rollouts")
def collector_rollouts(random: Random, leaks: bool) -> Lap:
    """As a TorchRL collector: a rollout of eight steps is stacked into one tensordict."""
    import torch
    from tensordict import TensorDict

    network = _network()
    rollouts: deque[object] = deque(maxlen=None if leaks else 10)

    def lap() -> None:
        steps = []
        with torch.no_grad():
            for _ in range(8):
                observation = torch.randn(8)
                steps.append(TensorDict({"observation": observation, "action": network(observation)}))
        rollouts.append(torch.stack(steps))

    return lap


@innocent
def collector_with_storage(random: Random) -> Lap:
    import torch
    from tensordict import TensorDict

    storage = TensorDict({"observation": torch.zeros(1000, 8), "reward": torch.zeros(1000)}, [1000])
    numbers = itertools.count()

    def lap() -> None:
        storage[next(numbers) % 1000] = TensorDict({"observation": torch.randn(8), "reward": torch.randn(())}, [])
        storage[torch.randint(0, 1000, (32,))].clone()

    return lap


@twins("unread")
def collector_in_a_thread(random: Random, leaks: bool) -> Lap:
    import torch

    asked: queue.Queue[int] = queue.Queue()
    ready: queue.Queue[object] = queue.Queue()
    unread: list[object] = []

    def collect() -> None:
        while True:
            ready.put({"batch": torch.randn(asked.get(), 4)})

    threading.Thread(target=collect, daemon=True).start()

    def lap() -> None:
        asked.put(8)
        batch = ready.get()
        if leaks:
            unread.append(batch)

    return lap


@twins("rewards")
def callback_of_sb3(random: Random, leaks: bool) -> Lap:
    from stable_baselines3 import A2C
    from stable_baselines3.common.callbacks import BaseCallback

    class Note(BaseCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.rewards: deque[object] = deque(maxlen=None if leaks else 20)

        def _on_step(self) -> bool:
            self.rewards.append(self.locals["rewards"].copy())
            return True

    model = A2C("MlpPolicy", "CartPole-v1", n_steps=5, device="cpu", seed=random.randrange(10**6))
    callback = Note()
    return lambda: model.learn(5, callback=callback, reset_num_timesteps=False)


@innocent
def monitored_steps(random: Random) -> Lap:
    """SB3's Monitor keeps one number an episode in each of three lists, and that is allowed for."""
    import gymnasium
    from stable_baselines3.common.monitor import Monitor

    env = Monitor(gymnasium.make("CartPole-v1"))

    def lap() -> None:
        env.reset(seed=random.randrange(10**6))
        while not any(env.step(env.action_space.sample())[2:4]):
            pass

    return lap


@innocent
def replay_buffer_of_sb3(random: Random) -> Lap:
    import gymnasium
    import numpy
    from stable_baselines3.common.buffers import ReplayBuffer

    box = gymnasium.spaces.Box(-1, 1, (12,))
    buffer = ReplayBuffer(3000, box, gymnasium.spaces.Discrete(3), device="cpu")

    def lap() -> None:
        observation = numpy.full((1, 12), random.random())
        buffer.add(observation, observation, numpy.array([1]), numpy.array([0.5]), numpy.array([False]), [{}])
        buffer.sample(8)

    return lap


@innocent
def normalized_vector_env(random: Random) -> Lap:
    import numpy
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    envs = VecNormalize(make_vec_env("CartPole-v1", 2, seed=random.randrange(10**6)))
    envs.reset()
    return lambda: envs.step(numpy.array([random.randrange(2), random.randrange(2)]))


@innocent
def sac_learns(random: Random) -> Lap:
    from stable_baselines3 import SAC

    arguments = {"buffer_size": 400, "learning_starts": 20, "batch_size": 16, "device": "cpu"}
    model = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [16]}, seed=random.randrange(10**6), **arguments)
    return lambda: model.learn(4, reset_num_timesteps=False)


@innocent
def ppo_on_pictures(random: Random) -> Lap:
    """Slow laps: a rollout and an update of a CNN policy take a large part of a second."""
    import gymnasium
    import numpy
    from stable_baselines3 import PPO

    class Pictures(gymnasium.Env):  # type: ignore[type-arg]
        observation_space = gymnasium.spaces.Box(0, 255, (3, 36, 36), numpy.uint8)
        action_space = gymnasium.spaces.Discrete(3)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 1.0, random.random() < 0.1, False, {}

    model = PPO("CnnPolicy", Pictures(), n_steps=32, batch_size=32, n_epochs=1, device="cpu")
    return lambda: model.learn(32, reset_num_timesteps=False)


@twins("models")
def models_saved(random: Random, leaks: bool) -> Lap:
    from stable_baselines3 import DQN

    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=10, device="cpu", policy_kwargs={"net_arch": [8]})
    models: list[io.BytesIO] = []

    def lap() -> None:
        file = io.BytesIO()
        model.save(file)
        models.append(file)
        if not leaks:
            models.clear()

    return lap


@twins("SummaryWriter", python=False)
def summary_writers(random: Random, leaks: bool) -> Lap:
    from torch.utils.tensorboard import SummaryWriter

    directory, kept = tempfile.mkdtemp(), []
    numbers = itertools.count()

    def lap() -> None:
        writer = SummaryWriter(os.path.join(directory, "run"), filename_suffix=str(next(numbers)))
        writer.add_scalar("reward", random.random(), 0)
        if leaks:
            kept.append(writer)
        else:
            writer.close()

    return lap


@innocent
def scalars_written(random: Random) -> Lap:
    from torch.utils.tensorboard import SummaryWriter

    writer, numbers = SummaryWriter(tempfile.mkdtemp()), itertools.count()
    return lambda: writer.add_scalar("reward", random.random(), next(numbers))


@twins("frames")
def film_frames(random: Random, leaks: bool) -> Lap:
    from PIL import Image

    frames: list[Any] = []

    def lap() -> None:
        frames.append(Image.new("P", (48, 48), random.randrange(255)))
        if not leaks and len(frames) == 16:
            frames[0].save(io.BytesIO(), "GIF", save_all=True, append_images=frames[1:])
            frames.clear()

    return lap


@twins("Image.open", python=False)
def pictures_opened(random: Random, leaks: bool) -> Lap:
    from PIL import Image

    path, opened = os.path.join(tempfile.mkdtemp(), "sprite.png"), []
    Image.new("RGB", (8, 8)).save(path)

    def lap() -> None:
        image = Image.open(path)
        if leaks:
            opened.append(image)
        else:
            image.load()

    return lap


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


@twins("figure")
def figures(random: Random, leaks: bool) -> Lap:
    pyplot = _pyplot()

    def lap() -> None:
        figure = pyplot.figure(figsize=(1, 1))
        if not leaks:
            pyplot.close(figure)

    return lap


@twins("plot")
def curves(random: Random, leaks: bool) -> Lap:
    axes = _pyplot().figure(figsize=(1, 1)).add_subplot()

    def lap() -> None:
        (line,) = axes.plot([0, 1], [random.random(), random.random()])
        if not leaks:
            line.remove()

    return lap


@innocent
def pictures_scaled(random: Random) -> Lap:
    import cv2
    import numpy

    frame = numpy.zeros((210, 160, 3), numpy.uint8)
    return lambda: cv2.resize(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), (84, random.randrange(60, 90)))

"""Tests that never change, to be compared with themselves: whatever a baseline says of them is wrong.

pytest --rl-stability --rl-save-baseline=innocents.json benchmarks/baseline_innocents.py
for run in 1 2 3 4 5 6; do pytest --rl-stability --rl-baseline=innocents.json benchmarks/baseline_innocents.py; done
"""

from __future__ import annotations

import json
import random
import threading

import gymnasium
import numpy as np
import pytest

pytestmark = pytest.mark.rl_no_leak


def test_numpy(rl_laps) -> None:
    for _ in rl_laps:
        np.linalg.svd(np.random.rand(60, 60))


def test_json(rl_laps) -> None:
    data = {str(number): list(range(20)) for number in range(200)}
    for _ in rl_laps:
        json.loads(json.dumps(data))


def test_thread(rl_laps) -> None:
    for _ in rl_laps:
        thread = threading.Thread(target=sum, args=(range(1000),))
        thread.start()
        thread.join()


def test_cache(rl_laps) -> None:
    seen = {}
    for _ in rl_laps:
        seen[random.randrange(500)] = bytes(200)


def test_box2d(rl_laps, box2d_world) -> None:
    world = box2d_world()
    for _ in rl_laps:
        body = world.CreateDynamicBody()
        body.CreatePolygonFixture(box=(1, 1))
        world.Step(1 / 60, 6, 2)
        world.DestroyBody(body)


def test_whole() -> None:
    _ = [bytearray(random.randrange(10000)) for _ in range(200)]


@pytest.mark.parametrize("number", range(5))
def test_gymnasium(rl_laps, number: int) -> None:
    env = gymnasium.make("CartPole-v1")
    for _ in rl_laps:
        env.reset()
        for _ in range(20):
            env.step(env.action_space.sample())

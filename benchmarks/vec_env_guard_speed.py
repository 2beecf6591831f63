"""Steps per second of a vector env with and without ``vec_env_guard``, in the same run.

    python benchmarks/vec_env_guard_speed.py

CartPole is the worst case: its step takes microseconds, so that the pipes are all there is. Guarded and unguarded
stretches alternate, so that a busy moment of the machine hits both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import gymnasium
import numpy
from stable_baselines3.common.vec_env import SubprocVecEnv

from pytest_rlstability.vec_env.guard import VecEnvGuard


def make_env() -> Any:
    return gymnasium.make("CartPole-v1")


def microseconds_per_step(venv: Any, actions: Any, steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        venv.step(actions)
    return (time.perf_counter() - began) / steps * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000, help="per stretch")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    actions = numpy.zeros(arguments.workers, numpy.int64)
    results = {}
    for name, build in {
        "SubprocVecEnv": lambda: SubprocVecEnv([make_env] * arguments.workers, "fork"),
        "AsyncVectorEnv": lambda: gymnasium.vector.AsyncVectorEnv([make_env] * arguments.workers, context="fork"),
    }.items():
        plain, guarded = build(), build()
        guard = VecEnvGuard(guarded, limit=30.0)
        plain.reset()
        guarded.reset()
        times: dict[str, list[float]] = {"plain": [], "guarded": []}
        for _ in range(arguments.rounds):
            times["plain"].append(microseconds_per_step(plain, actions, arguments.steps))
            times["guarded"].append(microseconds_per_step(guarded, actions, arguments.steps))
        plain.close()
        guarded.close()
        guard.release()
        before, after = statistics.median(times["plain"]), statistics.median(times["guarded"])
        print(f"{name:14s} {before:6.0f} us per step plain, {after:6.0f} guarded: {after / before - 1:+.1%}")
        results[name] = {"plain_us": round(before, 1), "guarded_us": round(after, 1), "ratio": round(after / before, 3)}
    print(json.dumps(results))


if __name__ == "__main__":
    main()

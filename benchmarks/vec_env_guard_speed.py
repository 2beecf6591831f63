"""Steps per second of a vector env with and without ``vec_env_guard``, in the same run.

    python benchmarks/vec_env_guard_speed.py

CartPole is the worst case: its step takes microseconds, so that the pipes are all there is. Guarded and unguarded
stretches alternate, so that a busy moment of the machine hits both; wall time is still as noisy as the machine is
busy, the CPU time that the guard adds is not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy
from stable_baselines3.common.vec_env import SubprocVecEnv

from pytest_rlstability.kits.vec_env.guard import VecEnvGuard


def make_env() -> Any:
    return gymnasium.make("CartPole-v1")


def step_costs(venv: Any, actions: Any, steps: int) -> tuple[float, float]:
    """Microseconds per step: wall time, and CPU time of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        venv.step(actions)
    return (time.perf_counter() - wall) / steps * 1e6, (time.process_time() - cpu) / steps * 1e6


def compare(plain: Any, guarded: Any, workers: int, steps: int, rounds: int) -> dict[str, float]:
    actions = numpy.zeros(workers, numpy.int64)
    plain.reset()
    guarded.reset()
    costs = [(*step_costs(plain, actions, steps), *step_costs(guarded, actions, steps)) for _ in range(rounds)]
    wall_plain, cpu_plain, wall_guarded, cpu_guarded = (
        statistics.median(column) for column in zip(*costs, strict=True)
    )
    return {
        "wall_us_plain": round(wall_plain, 1),
        "wall_us_guarded": round(wall_guarded, 1),
        "wall_ratio": round(wall_guarded / wall_plain, 3),
        "cpu_us_added_per_worker": round((cpu_guarded - cpu_plain) / workers, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30, help="per stretch")
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    makers = [make_env] * arguments.workers
    builders: dict[str, Callable[[], Any]] = {
        "SubprocVecEnv": lambda: SubprocVecEnv(makers, "fork"),
        "AsyncVectorEnv": lambda: gymnasium.vector.AsyncVectorEnv(makers, context="fork"),
    }
    results = {}
    for name, build in builders.items():
        plain, guarded = build(), build()
        guard = VecEnvGuard(guarded, limit=30.0)
        try:
            results[name] = compare(plain, guarded, arguments.workers, arguments.steps, arguments.rounds)
        finally:
            plain.close()
            guard.release()
        print(name, *(f"{key} {value}" for key, value in results[name].items()), sep="  ")
    print(json.dumps(results))


if __name__ == "__main__":
    main()

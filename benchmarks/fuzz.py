"""How much ``rlstability fuzz`` finds: 20 envs with one planted fault each, and the same 20 without it.

``python benchmarks/fuzz.py [seconds] [first] [end]`` searches each env for at most so many seconds (60), and its twin
for half of them. Beside it run ``check_env`` of Gymnasium and SB3 and random actions for the same time, each in a
process of its own: they find a fault when they die, hang or raise. *calls* is the length of the shortest test, *least*
the fewest calls that show the fault. With *first* and *end* only some of the faults are tried.

``python benchmarks/fuzz.py speed`` compares walks on CartPole with a bare loop.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

kept: list[Any] = []
alive: list[Any] = []
WORDS = {"left", "right", "up", "down", "stay"}


class Env(gymnasium.Env):
    """An env that asks *fault* at each call what goes wrong there; the innocent twin has none."""

    observation_space = Box(-10, 10, (3,), np.float32)

    def __init__(self, fault: Callable[[Env, str, Any], None], action_space: Any) -> None:
        self.fault, self.action_space = fault, action_space
        self.total = self.resets = self.closes = self.steps = 0
        self.before: Any = None
        self.seen = np.zeros(3, np.float32)
        self.reward = 0.0
        alive.append(self)
        self.fault(self, "make", None)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.resets, self.steps, self.before = self.resets + 1, 0, None
        return self.answer("reset", None), {}

    def step(self, action: Any) -> Any:
        self.steps, self.total, self.reward = self.steps + 1, self.total + 1, 0.0
        seen = self.answer("step", action)
        self.before = action
        return seen, self.reward, False, False, {}

    def answer(self, call: str, action: Any) -> Any:
        self.seen = np.full(3, self.steps % 7, np.float32)
        self.fault(self, call, action)
        return self.seen

    def close(self) -> None:
        self.closes += 1
        if self in alive:
            alive.remove(self)
        self.fault(self, "close", None)


def when(condition: Callable[[Env, str, Any], Any], then: Callable[[Env], Any]) -> Callable[[Env, str, Any], None]:
    return lambda env, call, action: (then(env), None)[1] if condition(env, call, action) else None


def crash(env: Env) -> None:
    os.abort()


def hang(env: Env) -> None:
    while True:
        time.sleep(1)


def wrong(env: Env) -> None:
    raise LookupError("no such body")


def reuse(env: Env) -> None:
    env.__dict__.setdefault("buffer", np.zeros(3, np.float32))[:] = env.steps % 7
    env.seen = env.buffer


def put(name: str, value: Any) -> Callable[[Env], None]:
    return lambda env: setattr(env, name, value)


def unseeded(env: Env) -> None:
    env.seen[:] = np.random.random()


SMALL, BOX, NESTED = (
    Discrete(6),
    Box(-1, 1, (2,), np.float32),
    Dict({"move": Discrete(3), "power": Box(0, 1, (1,), np.float32)}),
)
at_step = lambda number: lambda env, call, action: call == "step" and env.steps == number  # noqa: E731
on = lambda wanted: lambda env, call, action: call == wanted  # noqa: E731
FAULTS: dict[str, tuple[Callable[[Env, str, Any], None], Any, int]] = {
    "crash after a rare pair": (when(lambda e, c, a: c == "step" and (e.before, a) == (17, 3), crash), Discrete(40), 4),
    "crash on the third reset": (when(lambda e, c, a: c == "reset" and e.resets == 3, crash), SMALL, 4),
    "crash at step 1,000": (when(at_step(1000), crash), SMALL, 1002),
    "crash on the second close": (when(lambda e, c, a: c == "close" and e.closes == 2, crash), SMALL, 3),
    "crash on a step after close": (when(lambda e, c, a: c == "step" and e.closes, crash), SMALL, 3),
    "crash with two envs": (when(lambda e, c, a: c == "step" and len(alive) > 1, crash), SMALL, 4),
    "crash at the bound": (when(lambda e, c, a: c == "step" and (a == 1).all(), crash), BOX, 3),
    "crash after zero": (when(lambda e, c, a: c == "step" and e.steps > 1 and not e.before.any(), crash), BOX, 4),
    "crash in nested": (when(lambda e, c, a: c == "step" and a["move"] == 2 and a["power"] > 0.9, crash), NESTED, 3),
    "crash after ten equal": (when(lambda e, c, a: c == "step" and e.run(a) == 10, crash), SMALL, 12),
    "hang on one action": (when(lambda e, c, a: c == "step" and a == 3, hang), SMALL, 3),
    "hang on the second reset": (when(lambda e, c, a: c == "reset" and e.resets == 2, hang), SMALL, 3),
    "exception after 50 steps": (when(at_step(50), wrong), SMALL, 52),
    "NaN after 20 steps": (when(at_step(20), lambda e: e.seen.fill(np.nan)), SMALL, 22),
    "outside the space": (when(at_step(9), lambda e: e.seen.fill(11)), SMALL, 11),
    "infinite reward": (when(at_step(5), put("reward", float("inf"))), SMALL, 7),
    "reused buffer": (when(lambda e, c, a: True, reuse), SMALL, 3),
    "order of a set": (when(lambda e, c, a: True, lambda e: e.seen.fill([*WORDS].index("left"))), SMALL, 2),
    "unseeded numbers": (when(on("reset"), unseeded), SMALL, 2),
    "leak on reset": (when(on("reset"), lambda e: kept.append(bytearray(3000))), SMALL, 3),
}  # fmt: skip


def run_length(env: Env, action: Any) -> int:
    env.__dict__["length"] = env.__dict__.get("length", 0) + 1 if action == env.before else 1
    return int(env.__dict__["length"])


Env.run = run_length  # type: ignore[attr-defined]


def maker(name: str, planted: bool) -> Callable[[], Env]:
    fault, space, _ = FAULTS[name]
    return lambda: Env(fault if planted else lambda env, call, action: None, space)


for number, name in enumerate(FAULTS):  # names that a fresh interpreter can import
    globals()[f"planted_{number}"], globals()[f"innocent_{number}"] = maker(name, True), maker(name, False)


def search(name: str, planted: bool, seconds: float) -> tuple[str, int, float]:
    """What was found, in how many calls, after how long."""
    from pytest_rlstability.kits.fuzz.calls import Settings
    from pytest_rlstability.kits.fuzz.laboratory import Laboratory
    from pytest_rlstability.kits.fuzz.search import Search

    number, began = [*FAULTS].index(name), time.monotonic()
    settings = Settings(seconds, seed=1, stall_after=3.0, shrink_seconds=20.0)
    target = f"{'planted' if planted else 'innocent'}_{number}"
    with closing(Laboratory(globals()[target], settings)) as laboratory:
        case = next(Search(laboratory, lambda line: None, f"{os.path.abspath(__file__)}:{target}").cases(), None)
    return (case.finding.kind, len(case.calls), time.monotonic() - began) if case else ("", 0, time.monotonic() - began)


def peer(way: str, number: int, seconds: float) -> bool:
    """Whether another way to check an env notices the fault."""
    command = [sys.executable, __file__, way, str(number), str(seconds)]
    try:
        return subprocess.run(command, capture_output=True, timeout=seconds + 60).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def play_peer(way: str, number: int, seconds: float) -> None:
    env = globals()[f"planted_{number}"]()
    if way == "gymnasium":
        from gymnasium.utils.env_checker import check_env

        check_env(env, skip_render_check=True)
    elif way == "sb3":
        from stable_baselines3.common.env_checker import check_env as check

        check(env)
    else:
        end = time.monotonic() + seconds
        env.reset(seed=0)
        while time.monotonic() < end:
            env.step(env.action_space.sample())
        env.close()


def main(seconds: float, first: int, end: int) -> None:
    found, ratios, alarms, others = 0, [], 0, {"gymnasium": 0, "sb3": 0, "random": 0}
    rows = [*enumerate(FAULTS.items())][first:end]
    for number, (name, (_, _, least)) in rows:
        kind, calls, spent = search(name, True, seconds)
        alarm = search(name, False, seconds / 2)[0]
        found += bool(kind)
        alarms += bool(alarm)
        ratios += [calls / least] if kind else []
        seen = [way for way in others if peer(way, number, seconds)]
        for way in seen:
            others[way] += 1
        print(f"| {name} | {kind or 'not found'} | {spent:.1f} s | {calls} | {least} | {', '.join(seen) or '-'} | "
              f"{alarm or 'nothing'} |", flush=True)  # fmt: skip
    print(f"found {found} of {len(rows)}, calls {statistics.median(ratios):.2f} x least (median), {alarms} alarms in "
          f"twins; others: {', '.join(f'{way} {count}' for way, count in others.items())}")  # fmt: skip
    assert threading.active_count() == 1


def speed() -> None:
    """Steps per processor second of twelve walks on CartPole, and of a bare loop between them."""
    from pytest_rlstability.kits.fuzz.calls import Settings
    from pytest_rlstability.kits.fuzz.material import Material
    from pytest_rlstability.kits.fuzz.walk import Walk

    spent, steps = {"walks": 0.0, "bare": 0.0}, {"walks": 0, "bare": 0}
    env = gymnasium.make("CartPole-v1")
    gc.freeze()  # as forks do
    for seed in range(12):
        material = Material(seed, env.action_space, Settings())
        began = time.process_time()
        walk = Walk(lambda: gymnasium.make("CartPole-v1"), material, [0] * (1 << 17), invalid=False)
        steps["walks"] += walk.run(2.0).steps
        spent["walks"] += time.process_time() - began
        env.reset(seed=seed)
        began = time.process_time()
        for _ in range(5000):
            if any(env.step(env.action_space.sample())[2:4]):
                env.reset()
        spent["bare"] += time.process_time() - began
        steps["bare"] += 5000
    rates = {name: steps[name] / spent[name] for name in spent}
    print(f"walks {rates['walks']:,.0f}, bare loop {rates['bare']:,.0f}: {rates['walks'] / rates['bare']:.0%}")


if __name__ == "__main__":
    if sys.argv[1:] == ["speed"]:
        speed()
    elif sys.argv[1:2] and sys.argv[1] in ("gymnasium", "sb3", "random"):
        play_peer(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    else:
        given = [float(word) for word in sys.argv[1:]] + [60.0, 0, len(FAULTS)][len(sys.argv) - 1 :]
        main(given[0], int(given[1]), int(given[2]))

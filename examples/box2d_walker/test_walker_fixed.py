"""The same walker, giving back what it took.

pytest --rl-stability examples/box2d_walker/test_walker_fixed.py
"""

from __future__ import annotations

from walker import LIMITS, TidyWalker, class_of


def test_episodes(box2d_world, rl_stage) -> None:
    with rl_stage("make world"):
        env = TidyWalker()
        watch = box2d_world.watch(env, classify=class_of, limits=LIMITS)
    for _ in range(20):
        with rl_stage("episode"):
            env.reset()
            for _ in range(10):
                env.step()
            assert env.eat() > 0
    census = watch.census()
    assert (census.terrain, census.food, census.agent, census.unknown) == (1, 2, 2, 0)


def test_laps_are_judged(box2d_world, rl_laps, rl_probe) -> None:
    env = TidyWalker()
    box2d_world.watch(env, classify=class_of)
    rl_probe("food", lambda: len(env.food), limit=TidyWalker.FOOD, per_lap=0)
    for _ in rl_laps:
        env.reset()
        env.step()

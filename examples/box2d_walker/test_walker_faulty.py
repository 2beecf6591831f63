"""Training slows down hour by hour: the physics world keeps every body that an episode ever made.

    pytest --rl-stability examples/box2d_walker/test_walker_faulty.py

``box2d_world`` says which class grows, by how much per episode, and the line that makes what is never destroyed;
and it stops the use of a destroyed body before that reads freed memory.
"""

from __future__ import annotations

from walker import LIMITS, GrazingWalker, GreedyListener, HastyWalker, TidyWalker, class_of


def test_episodes(box2d_world) -> None:
    env = GrazingWalker()
    box2d_world.watch(env, classify=class_of, limits=LIMITS)
    for _ in range(20):
        env.reset()
        for _ in range(10):
            env.step()
        env.eat()


def test_reward_of_eaten_food(box2d_world) -> None:
    env = HastyWalker()
    box2d_world.watch(env)
    env.reset()
    assert env.eat() > 0


def test_eating_on_contact(box2d_world) -> None:
    env = TidyWalker()
    env.world.contactListener = GreedyListener()
    box2d_world.watch(env)
    env.reset()
    for _ in range(120):
        env.step()

"""What ``box2d_world`` costs a stepping world of 200 bodies: ``python benchmarks/box2d_cost.py``.

Two equal worlds, one plain and one watched, step in turns, so that whatever else the machine does hits both.
Once as they are, and once with a contact listener that looks at both bodies of every contact, which is where
Box2D makes Python objects. Exit code 1 when a plain step costs more than 5 % extra.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from contextlib import nullcontext
from typing import Any

import Box2D

from pytest_rlstability.kits.box2d.watch import WorldFactory

BODIES, STEPS, TARGET = 200, 20, 0.05


class Looking(Box2D.b2ContactListener):
    def BeginContact(self, contact: Any) -> None:  # noqa: N802 (Box2D's name)
        contact.fixtureA.body.userData  # noqa: B018 (the look is what is measured)
        contact.fixtureB.body.userData  # noqa: B018


def build(make: Any, *, listen: bool) -> Any:
    world = make(gravity=(0, -10))
    if listen:
        world.contactListener = Looking()
    world.CreateStaticBody(shapes=Box2D.b2PolygonShape(box=(100, 1)))
    for index in range(BODIES - 1):
        body = world.CreateDynamicBody(position=(index % 20 * 2.2 - 22, 3 + index // 20 * 2.2), allowSleep=False)
        body.CreatePolygonFixture(box=(0.5, 0.5), density=1, friction=0.3)
    return world


def seconds(world: Any) -> float:
    start = time.perf_counter()
    for _ in range(STEPS):
        world.Step(1 / 60, 6, 2)
    return time.perf_counter() - start


def measure(*, listen: bool, rounds: int) -> tuple[float, float]:
    """Seconds a step of a plain and of a watched world, each the median of its rounds."""
    plain = build(Box2D.b2World, listen=listen)
    times: dict[bool, list[float]] = {False: [], True: []}
    factory = WorldFactory()
    with factory:
        watched = build(factory, listen=listen)
    for round_number in range(rounds):
        for watch in (False, True) if round_number % 2 else (True, False):
            with factory.registry if watch else nullcontext():
                times[watch].append(seconds(watched if watch else plain) / STEPS)
    return statistics.median(times[False]), statistics.median(times[True])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    missed = False
    for name, listen in (("Step", False), ("Step, looking at every new contact", True)):
        plain, watched = measure(listen=listen, rounds=rounds)
        cost = watched / plain - 1
        missed |= not listen and cost > TARGET
        print(f"{name:<36} {plain * 1e6:8.1f} us plain {watched * 1e6:8.1f} us watched {cost:+7.1%}")
    with WorldFactory() as factory:
        world = build(factory, listen=False)
        start = time.perf_counter()
        world.census()
        print(f"{'census()':<36} {(time.perf_counter() - start) * 1e6:8.1f} us, only when asked")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""A walker that grazes: it lives on terrain, eats food, and is born again in every episode."""

from __future__ import annotations

from typing import Any

import Box2D


class GrazingWalker:
    """Leaves everything behind: terrain is laid again in each episode and eaten food is only forgotten."""

    FOOD = 3

    def __init__(self) -> None:
        self.world = Box2D.b2World(gravity=(0, -10))
        self.terrain: Any = None
        self.agent: Any = None
        self.food: list[Any] = []

    def reset(self) -> None:
        self.tidy_up()
        self.terrain = self.world.CreateStaticBody(shapes=Box2D.b2PolygonShape(box=(20, 1)), userData="terrain")
        self.food = [self.drop_food(position) for position in range(self.FOOD)]
        if self.agent is None:
            self.agent = self.make_agent()

    def tidy_up(self) -> None:
        self.food.clear()

    def make_agent(self) -> Any:
        trunk = self.world.CreateDynamicBody(position=(0, 4), userData="agent")
        trunk.CreatePolygonFixture(box=(0.5, 1), density=1)
        leg = self.world.CreateDynamicBody(position=(0, 2.5), userData="agent")
        leg.CreatePolygonFixture(box=(0.2, 0.8), density=1)
        self.world.CreateRevoluteJoint(bodyA=trunk, bodyB=leg, anchor=(0, 3))
        return trunk

    def drop_food(self, position: float) -> Any:
        food = self.world.CreateDynamicBody(position=(3 + position, 3), userData="food")
        food.CreateCircleFixture(radius=0.3, density=0.1)
        return food

    def step(self) -> None:
        self.world.Step(1 / 60, 6, 2)

    def eat(self) -> float:
        """Eat the oldest food; the reward depends on where it lay."""
        eaten = self.food.pop(0)
        return float(eaten.position.x)


class TidyWalker(GrazingWalker):
    """Gives back what it took: the old terrain and all food are destroyed, and eaten food at once."""

    def tidy_up(self) -> None:
        for body in [self.terrain, *self.food]:
            if body is not None:
                self.world.DestroyBody(body)
        self.food.clear()

    def eat(self) -> float:
        eaten = self.food.pop(0)
        reward = float(eaten.position.x)
        self.world.DestroyBody(eaten)
        return reward


class HastyWalker(TidyWalker):
    """Destroys the food first and asks where it lay afterwards: freed memory, and a reward made of it."""

    def eat(self) -> float:
        eaten = self.food.pop(0)
        self.world.DestroyBody(eaten)
        return float(eaten.position.x)


class GreedyListener(Box2D.b2ContactListener):
    """Destroys food in the middle of the step in which it is touched."""

    def BeginContact(self, contact: Any) -> None:  # noqa: N802 (Box2D's name)
        for fixture in (contact.fixtureA, contact.fixtureB):
            if fixture.body.userData == "food":
                fixture.body.world.DestroyBody(fixture.body)
                return


LIMITS = {
    "terrain": {"warning": 2, "critical": 10},
    "food": {"warning": 20, "critical": 50, "per_lap": 0},
    "joints": {"per_lap": 0},
}


def class_of(body: Any) -> str | None:
    return body.userData if body.userData in ("terrain", "agent", "food") else None

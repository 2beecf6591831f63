"""A meadow on which food grows, is eaten and is meant to go: the world of the soak test."""

from __future__ import annotations

from typing import Any

import Box2D


class Meadow:
    """One lap is one ``graze()``: food is dropped, the grazer eats it, and what was eaten is destroyed, except for
    every *forgets*-th piece, which nobody holds any more and the world keeps. ``forgets=None`` forgets nothing."""

    def __init__(self, forgets: int | None = 20) -> None:
        self.world = Box2D.b2World(gravity=(0, -10))
        self.world.CreateStaticBody(shapes=Box2D.b2PolygonShape(box=(20, 1)), userData="terrain")
        grazer = self.world.CreateDynamicBody(position=(0, 4), userData="agent")
        grazer.CreatePolygonFixture(box=(0.5, 1), density=1)
        self.forgets = forgets
        self.eaten = 0

    def graze(self) -> None:
        food = self.world.CreateDynamicBody(position=(3, 3), userData="food")
        food.CreateCircleFixture(radius=0.3, density=0.1)
        for _ in range(6):
            self.world.Step(1 / 60, 6, 2)
        self.eaten += 1
        if self.forgets is None or self.eaten % self.forgets:
            self.world.DestroyBody(food)


def class_of(body: Any) -> str:
    return str(body.userData)

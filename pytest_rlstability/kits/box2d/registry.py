"""Who made what in which world, and what has become of it."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from pytest_rlstability.box2d.destroyed import Epitaph
from pytest_rlstability.box2d.wrappers import LiveWrappers, Place, place_of
from pytest_rlstability.sites import Site, here

BODY_TYPES = ("static", "kinematic", "dynamic")
_SHAPES = ("circle", "edge", "polygon", "chain")

LIBRARY_LEAKS = {"circle shape": 32, "edge shape": 64, "polygon shape": 304}
"""Bytes that Box2D 2.3.10 itself never gives back: a shape that was once put into a fixture definition is
nobody's any more. Chains are not among them, since what they lose depends on their length."""
USER_DATA_LEAK = "userData of a fixture or joint that went with its body"


class WorldLockedError(RuntimeError):
    """Something was to be created or destroyed in the middle of ``world.Step``, where Box2D cannot do it."""


@dataclass(frozen=True)
class Record:
    """One body, fixture or joint: what it is, whose it is, and the line that made it."""

    what: str
    world: int
    created: Site


class Registry:
    """Watches every world of the process from ``__enter__`` to ``__exit__``: creations and destructions only,
    never a step."""

    def __init__(self) -> None:
        self._records: dict[Place, Record] = {}
        self._wrappers = LiveWrappers()
        self._worlds: dict[int, weakref.finalize[..., Any]] = {}
        self._stack = ExitStack()
        self.library_leaks: Counter[str] = Counter()
        """How often Box2D itself lost memory, by the name of the leak."""

    def __enter__(self) -> Registry:
        import Box2D

        self._stack.enter_context(self._wrappers)
        self._wrap(Box2D.b2World, "__init__", self._world_made)
        self._wrap(Box2D.b2World, "_b2World__CreateBody", self._body_made)
        self._wrap(Box2D.b2World, "_b2World__CreateJoint", self._joint_made)
        self._wrap(Box2D.b2Body, "_b2Body__CreateFixture", self._fixture_made)
        self._wrap_shape_setter(Box2D.b2FixtureDef)
        self._wrap(Box2D.b2World, "DestroyBody", self._destroy_body)
        self._wrap(Box2D.b2World, "DestroyJoint", self._destroy_joint)
        self._wrap(Box2D.b2Body, "DestroyFixture", self._destroy_fixture)
        return self

    def __exit__(self, *exception: object) -> None:
        for finalizer in self._worlds.values():
            finalizer.detach()
        self._stack.close()

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        unbound, original = owner.__dict__[name], getattr(owner, name)

        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            return around(original, *arguments, **keywords)

        setattr(owner, name, wrapper)
        self._stack.callback(setattr, owner, name, unbound)

    def _wrap_shape_setter(self, owner: Any) -> None:
        original = owner.__dict__["shape"]

        def set_shape(definition: Any, shape: Any) -> None:
            owned = shape is not None and shape.thisown
            original.fset(definition, shape)
            if owned and not shape.thisown:
                self.library_leaks[f"{_SHAPES[shape.type]} shape"] += 1

        owner.shape = property(original.fget, set_shape, doc=original.__doc__)
        self._stack.callback(setattr, owner, "shape", original)

    def library_bytes(self) -> int:
        """Bytes that Box2D lost by itself, as far as their size is known."""
        return sum(count * LIBRARY_LEAKS.get(name, 0) for name, count in self.library_leaks.items())

    # Worlds

    def adopt(self, world: Any) -> None:
        """Follow a world that was made before; what is in it has no known creator."""
        self._follow(world)
        self._wrappers.find_existing()

    def _world_made(self, original: Any, world: Any, *arguments: Any, **keywords: Any) -> None:
        original(world, *arguments, **keywords)
        self._follow(world)

    def _follow(self, world: Any) -> None:
        number = int(world.this)
        if number not in self._worlds:
            self._worlds[number] = weakref.finalize(world, self._world_gone, number)
            self._worlds[number].atexit = False

    def _world_gone(self, number: int) -> None:
        self._worlds.pop(number, None)
        places = [place for place, record in self._records.items() if record.world == number]
        self._bury(places, "with its world")

    def world_count(self) -> int:
        """Worlds of this process that still exist."""
        return len(self._worlds)

    # What is in them

    def _body_made(self, original: Any, world: Any, definition: Any) -> Any:
        _refuse_when_locked(world, "CreateBody")
        body = original(world, definition)
        self._record(body, f"{BODY_TYPES[body.type]} body", int(world.this))
        return body

    def _joint_made(self, original: Any, world: Any, definition: Any) -> Any:
        _refuse_when_locked(world, "CreateJoint")
        joint = original(world, definition)
        self._record(joint, type(joint).__name__.removeprefix("b2"), int(world.this))
        return joint

    def _fixture_made(self, original: Any, body: Any, definition: Any) -> Any:
        world = body.world
        _refuse_when_locked(world, "CreateFixture")
        fixture = original(body, definition)
        self._record(fixture, f"fixture with a {_SHAPES[fixture.type]} shape", int(world.this))
        return fixture

    def _record(self, thing: Any, what: str, world: int) -> None:
        self._records[place_of(thing)] = Record(what, world, here())

    def _destroy_body(self, original: Any, world: Any, body: Any) -> None:
        _refuse_when_locked(world, "DestroyBody")
        fixtures, joints = list(body.fixtures), [edge.joint for edge in body.joints]
        # Box2D gives up userData before it calls EndContact, where people read it; so it must not be the last.
        kept = [thing.userData for thing in (*fixtures, *joints)]
        kept_by_body = body.userData
        places = [place_of(thing) for thing in (body, *fixtures, *joints)]
        del fixtures, joints
        original(world, body)
        self.library_leaks[USER_DATA_LEAK] += sum(data is not None for data in kept)
        del kept_by_body
        self._bury(places[:1], "by DestroyBody")
        self._bury(places[1:], "together with its body")

    def _destroy_joint(self, original: Any, world: Any, joint: Any) -> None:
        _refuse_when_locked(world, "DestroyJoint")
        place = place_of(joint)
        original(world, joint)
        self._bury([place], "by DestroyJoint")

    def _destroy_fixture(self, original: Any, body: Any, fixture: Any) -> None:
        _refuse_when_locked(body.world, "DestroyFixture")
        place = place_of(fixture)
        kept = fixture.userData
        original(body, fixture)
        del kept
        self._bury([place], "by DestroyFixture")

    def _bury(self, places: Iterable[Place], because: str) -> None:
        site = here()
        for place in places:
            record = self._records.pop(place, None)
            what, created = (record.what, record.created) if record is not None else (place[0], None)
            self._wrappers.bury(place, Epitaph(what, created, site, because))

    def survivors(self, world: Any) -> Counter[tuple[str, Site]]:
        """What was made in *world* and never destroyed, by what it is and the lines that made it."""
        number = int(world.this)
        return Counter((record.what, record.created) for record in self._records.values() if record.world == number)


def _refuse_when_locked(world: Any, operation: str) -> None:
    if world.locked:
        raise WorldLockedError(
            f"{operation} inside world.Step, at {here().innermost}: the world is locked while contact callbacks run. "
            "Remember the body in the callback and do it after Step has returned."
        )

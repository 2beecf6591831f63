"""Records which lines made each body, fixture and joint of each world, and what was destroyed."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from pytest_rlstability.kits.box2d.destroyed import Destruction
from pytest_rlstability.kits.box2d.wrappers import LiveWrappers, Place, place_of
from pytest_rlstability.leaks.known_leaks import KnownLeak
from pytest_rlstability.model.user_code import Site, here

BODY_TYPES = ("static", "kinematic", "dynamic")
_SHAPES = ("circle", "edge", "polygon", "chain")
_BINDINGS = (os.path.join("Box2D", "Box2D.py"),)

LIBRARY_LEAKS = {"circle shape": 32, "edge shape": 64, "polygon shape": 304}
"""Bytes that Box2D 2.3.10 itself never frees: a shape that was put into a fixture definition has no owner any more.
Chains are not listed, because their loss depends on their length."""
USER_DATA_LEAK = "userData of a fixture or joint that went with its body"


def users_site() -> Site:
    """The lines that led to this call; those of Box2D's own Python module are left out."""
    return here(_BINDINGS)


class ShapeLeak(KnownLeak):
    """What Box2D has lost in this process while the fixture was in use."""

    reason = "Box2D never frees a shape that was put into a fixture definition"
    lost_bytes = 0

    def heap_bytes(self) -> float:
        return float(ShapeLeak.lost_bytes)


class WorldLockedError(RuntimeError):
    """Something was to be created or destroyed during ``world.Step``, when Box2D cannot do it."""


@dataclass(frozen=True)
class Record:
    """One body, fixture or joint: what it is, the address of its world, and the lines that made it."""

    what: str
    world: int
    created: Site


class Registry:
    """Records creations and destructions in every world of the process from ``__enter__`` to ``__exit__``."""

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
                name = f"{_SHAPES[shape.type]} shape"
                self.library_leaks[name] += 1
                ShapeLeak.lost_bytes += LIBRARY_LEAKS.get(name, 0)

        owner.shape = property(original.fget, set_shape, doc=original.__doc__)
        self._stack.callback(setattr, owner, "shape", original)

    # Worlds

    def adopt(self, world: Any) -> None:
        """Follow a world that may have been made earlier; the lines that made what is in it are then unknown."""
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
        self._mark_destroyed(places, "with its world")

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
        self._records[place_of(thing)] = Record(what, world, users_site())

    def _destroy_body(self, original: Any, world: Any, body: Any) -> None:
        _refuse_when_locked(world, "DestroyBody")
        fixtures, joints = list(body.fixtures), [edge.joint for edge in body.joints]
        # Box2D drops its reference to userData before it calls EndContact, where people read it: hold another one.
        kept = [thing.userData for thing in (*fixtures, *joints)]
        kept_by_body = body.userData
        places = [place_of(thing) for thing in (body, *fixtures, *joints)]
        del fixtures, joints
        original(world, body)
        self.library_leaks[USER_DATA_LEAK] += sum(data is not None for data in kept)
        del kept_by_body
        self._mark_destroyed(places[:1], "by DestroyBody")
        self._mark_destroyed(places[1:], "together with its body")

    def _destroy_joint(self, original: Any, world: Any, joint: Any) -> None:
        _refuse_when_locked(world, "DestroyJoint")
        place = place_of(joint)
        original(world, joint)
        self._mark_destroyed([place], "by DestroyJoint")

    def _destroy_fixture(self, original: Any, body: Any, fixture: Any) -> None:
        _refuse_when_locked(body.world, "DestroyFixture")
        place = place_of(fixture)
        kept = fixture.userData
        original(body, fixture)
        del kept
        self._mark_destroyed([place], "by DestroyFixture")

    def _mark_destroyed(self, places: Iterable[Place], because: str) -> None:
        site = users_site()
        for place in places:
            record = self._records.pop(place, None)
            what, created = (record.what, record.created) if record is not None else (place[0], None)
            self._wrappers.mark_destroyed(place, Destruction(what, created, site, because))

    def survivors(self, world: Any) -> Counter[tuple[str, Site]]:
        """What was made in *world* and never destroyed, by what it is and the lines that made it."""
        number = int(world.this)
        return Counter((record.what, record.created) for record in self._records.values() if record.world == number)


def _refuse_when_locked(world: Any, operation: str) -> None:
    if world.locked:
        raise WorldLockedError(
            f"{operation} inside world.Step, at {users_site().innermost}: the world is locked while contact callbacks "
            "run. Remember the body in the callback and do it after Step has returned."
        )

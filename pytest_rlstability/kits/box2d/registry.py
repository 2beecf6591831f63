"""Records which lines made each body, fixture and joint of each world, and what was destroyed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from pytest_rlstability.kits.box2d.wrappers import Destruction, LiveWrappers, Place, classes, place_of
from pytest_rlstability.leaks.known_leaks import KnownLeak
from pytest_rlstability.model.user_code import Site, here

BODY_TYPES = ("static", "kinematic", "dynamic")
_SHAPES = ("circle", "edge", "polygon", "chain")
_BINDINGS = (os.path.join("Box2D", "Box2D.py"),)

LIBRARY_LEAKS = {"circle shape": 32, "edge shape": 64, "polygon shape": 304}
"""Bytes that Box2D 2.3.10 itself never frees: a shape that was put into a fixture definition has no owner any more.
Chains are not listed, because their loss depends on their length."""
_WORLD_END = "_rlstability_end"
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


class _WorldEnd:
    """Tells *registry* when the world that has it as an attribute is freed. The registry has no table of worlds: the
    leak check would name it as the holder of the worlds that a test keeps."""

    def __init__(self, registry: Registry, number: int) -> None:
        self.registry, self._number = registry, number

    def __del__(self) -> None:
        self.registry.world_gone(self._number)


class Registry:
    """Records creations and destructions in every world of the process from ``__enter__`` to ``__exit__``."""

    def __init__(self) -> None:
        self._records: dict[Place, Record] = {}
        self._wrappers = LiveWrappers()
        self._world_count = 0
        self._active = True
        self._known: dict[Any, Any] = {}
        self._patch = pytest.MonkeyPatch()
        self.library_leaks: Counter[str] = Counter()
        """How often Box2D itself lost memory, by the name of the leak."""

    def __enter__(self) -> Registry:
        import Box2D

        for kind in classes():
            self._patch.setattr(kind, "__new__", self._wrappers.make)
        self._wrap(Box2D.b2World, "__init__", self._world_made)
        self._wrap_shape_setter(Box2D.b2FixtureDef)
        for owner, kind, describe in (
            (Box2D.b2World, "Body", lambda body: f"{BODY_TYPES[body.type]} body"),
            (Box2D.b2World, "Joint", lambda joint: type(joint).__name__.removeprefix("b2")),
            (Box2D.b2Body, "Fixture", lambda fixture: f"fixture with a {_SHAPES[fixture.type]} shape"),
        ):
            self._wrap(owner, f"_{owner.__name__}__Create{kind}", partial(self._create, kind, describe))
            self._wrap(owner, f"Destroy{kind}", partial(self._destroy, kind))
        return self

    def __exit__(self, *exception: object) -> None:
        self._active = False
        self._patch.undo()

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            return around(original, *arguments, **keywords)

        self._patch.setattr(owner, name, wrapper)

    def _wrap_shape_setter(self, owner: Any) -> None:
        original = owner.__dict__["shape"]

        def set_shape(definition: Any, shape: Any) -> None:
            owned = shape is not None and shape.thisown
            original.fset(definition, shape)
            if owned and not shape.thisown:
                name = f"{_SHAPES[shape.type]} shape"
                self.library_leaks[name] += 1
                ShapeLeak.lost_bytes += LIBRARY_LEAKS.get(name, 0)

        self._patch.setattr(owner, "shape", property(original.fget, set_shape, doc=original.__doc__))

    # Worlds

    def adopt(self, world: Any) -> None:
        """Follow a world that may have been made earlier; the lines that made what is in it are then unknown."""
        self._follow(world)
        self._wrappers.find_existing()

    def _world_made(self, original: Any, world: Any, *arguments: Any, **keywords: Any) -> None:
        original(world, *arguments, **keywords)
        self._follow(world)

    def _follow(self, world: Any) -> None:
        end = world.__dict__.get(_WORLD_END)
        if end is None or end.registry is not self:
            world.__dict__[_WORLD_END] = _WorldEnd(self, int(world.this))
            self._world_count += 1

    def world_gone(self, number: int) -> None:
        """For the end of a world, not for tests."""
        if not self._active:
            return
        self._world_count -= 1
        places = [place for place, record in self._records.items() if record.world == number]
        self._mark_destroyed(places, "with its world")

    def world_count(self) -> int:
        """Worlds of this process that still exist."""
        return self._world_count

    # What is in them

    def _create(self, kind: str, describe: Callable[[Any], str], original: Any, owner: Any, definition: Any) -> Any:
        world = _unlocked_world(owner, f"Create{kind}")
        thing = original(owner, definition)
        self._records[place_of(thing)] = Record(describe(thing), int(world.this), self._one_of(users_site()))
        return thing

    def _destroy(self, kind: str, original: Any, owner: Any, thing: Any) -> None:
        _unlocked_world(owner, f"Destroy{kind}")
        things = [thing]
        if kind == "Body":
            things += [*thing.fixtures, *(edge.joint for edge in thing.joints)]
        # Box2D drops its reference to userData before it calls EndContact, where people read it: hold another one.
        kept = [each.userData for each in things]
        place, *others = [place_of(each) for each in things]
        del things
        original(owner, thing)
        self.library_leaks[USER_DATA_LEAK] += sum(data is not None for data in kept[1:])
        self._mark_destroyed([place], f"by Destroy{kind}")
        self._mark_destroyed(others, "together with its body")

    def _mark_destroyed(self, places: Iterable[Place], because: str) -> None:
        site = self._one_of(users_site())
        for place in places:
            record = self._records.pop(place, None)
            what, created = (record.what, record.created) if record is not None else (place[0], None)
            self._wrappers.mark_destroyed(place, self._one_of(Destruction(what, created, site, because)))

    def _one_of(self, thing: Any) -> Any:
        """The first of all things that equal *thing*: what many objects have in common is kept once."""
        return self._known.setdefault(thing, thing)

    def survivors(self, world: Any) -> Counter[tuple[str, Site]]:
        """What was made in *world* and never destroyed, by what it is and the lines that made it."""
        number = int(world.this)
        return Counter((record.what, record.created) for record in self._records.values() if record.world == number)


def _unlocked_world(owner: Any, operation: str) -> Any:
    """The world that *owner*, a body or the world itself, belongs to. It must be able to create and destroy now."""
    world = getattr(owner, "world", owner)
    if world.locked:
        raise WorldLockedError(
            f"{operation} inside world.Step, at {users_site().innermost}: the world is locked while contact callbacks "
            "run. Remember the body in the callback and do it after Step has returned."
        )
    return world

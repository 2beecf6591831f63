"""The Python objects for bodies, fixtures and joints. Box2D makes a new one whenever one is asked for."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from pytest_rlstability.kits.box2d.destroyed import Destruction, mark_destroyed

Place = tuple[str, int]
"""Kind and address of the C++ object that a wrapper stands for."""


class _Reference(weakref.ref[Any]):
    __slots__ = ("home", "key")
    home: dict[int, _Reference]
    key: int


def _forget(reference: Any) -> None:
    reference.home.pop(reference.key, None)


class LiveWrappers:
    """Knows every wrapper that is still referenced, to mark all that stand for an object when it is destroyed.
    Wrappers are indexed by address only when something is destroyed, never in a step."""

    def __init__(self) -> None:
        self._fresh: dict[int, _Reference] = {}
        self._by_place: dict[Place, dict[int, _Reference]] = {}

    def __enter__(self) -> LiveWrappers:
        for kind in classes():
            kind.__new__ = self._make
        return self

    def __exit__(self, *exception: object) -> None:
        for kind in classes():
            del kind.__new__

    def _make(self, kind: type, *arguments: Any, **keywords: Any) -> Any:
        wrapper: Any = object.__new__(kind)
        self._remember(wrapper)
        return wrapper

    def _remember(self, wrapper: Any) -> None:
        reference = _Reference(wrapper, _forget)
        reference.home, reference.key = self._fresh, id(wrapper)
        self._fresh[reference.key] = reference

    def find_existing(self) -> None:
        """Remember the wrappers that were made before this object began to watch."""
        kinds = classes()
        known = {*self._fresh, *(key for home in self._by_place.values() for key in home)}
        for thing in gc.get_objects():
            if issubclass(type(thing), kinds) and id(thing) not in known:
                self._remember(thing)

    def mark_destroyed(self, place: Place, destruction: Destruction) -> None:
        """Mark every wrapper of the object that was at *place*."""
        self._index()
        for reference in list(self._by_place.pop(place, {}).values()):
            wrapper = reference()
            if wrapper is not None:
                mark_destroyed(wrapper, destruction)

    def _index(self) -> None:
        while self._fresh:
            key, reference = self._fresh.popitem()
            wrapper = reference()
            if wrapper is None or "this" not in wrapper.__dict__:
                continue
            reference.home = self._by_place.setdefault(place_of(wrapper), {})
            reference.home[key] = reference


def classes() -> tuple[Any, ...]:
    import Box2D

    return Box2D.b2Body, Box2D.b2Fixture, Box2D.b2Joint


def place_of(thing: Any) -> Place:
    """What *thing* stands for; equal for all wrappers of one body, fixture or joint."""
    kinds = zip(("body", "fixture", "joint"), classes(), strict=True)
    return next(name for name, kind in kinds if isinstance(thing, kind)), int(thing.this)
